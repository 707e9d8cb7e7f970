"""`pac.Agent`: a trained policy and its critic. It acts, gives values, is evaluated, improves and is saved.

numpy arrays go in and come out. `pac.load` and `pac.train` make agents. Each method that writes files prints the
command that does the same.
"""

import copy
import dataclasses
import json
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pac.config import suggest
from pac.envs import episode_seed
from pac.envs.given import is_given, one_at_a_time
from pac.evaluation import Actor, Evaluation
from pac.evaluation.play import Tasks, play, task_names
from pac.files import problem
from pac.improve.folder import ImproveFolder
from pac.improve.loop import StoppedError
from pac.improve.run import improve_in
from pac.improve.settings import ImproveConfig
from pac.model.pretrained import CONFIG, TRAIN_CONFIG, WEIGHTS, pretrained_folder, write_pretrained
from pac.policy import Policy
from pac.policy import load as load_policy
from pac.recipe_keys import as_override, short_names
from pac.training.logging import make_console
from pac.types import Sampling

ENDS = {
    "mastered": "Every target is mastered.",
    "budget": "All rounds are done. More rounds continue there.",
    "waiting": "It waits for data in its inbox.",
}
ObservationLike = np.ndarray | Mapping[str, Any]  # a state, or a state and images by name; one or a batch


class Agent:
    """A policy and its critic, loaded from a folder. `path` is that folder."""

    def __init__(self, policy: Policy, path: str | Path) -> None:
        self.policy, self.path = policy, Path(path)
        self.reset()

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None, sampling: Sampling = "sample") -> "Agent":
        """Load a run, a checkpoint, an improvement or a folder of `save`. `sampling` says how actions are chosen."""
        return cls(load_policy(path, device=device, sampling=sampling), path)

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self.policy.metadata.embodiments)
        return f"Agent({str(self.path)!r}, method {self.method}, trained on {names})"

    @property
    def method(self) -> str | None:
        """The method that trained the agent, such as "pac+v". None if its folder does not say."""
        file = pretrained_folder(self.path) / TRAIN_CONFIG
        return str(json.loads(file.read_text())["config"]["method"]) if file.is_file() else None

    @property
    def critic(self) -> str:
        """Which critic the model has: "q" (PAC, BC+Q), "v" (PAC+V) or "none" (cloning)."""
        config = self.policy.model.config
        return "q" if config.q_head else "v" if config.v_head else "none"

    # --------------------------------------------------------------------------------------------------------- acting

    def reset(self, seed: int = 0) -> None:
        """Start an episode: the noise of sampled actions depends on the seed and the number of the step alone."""
        self._seed, self._step = episode_seed("agent", seed, 0), 0

    def act(
        self,
        observation: ObservationLike,
        *,
        instruction: str | None = None,
        dataset: str | None = None,
        any_instruction: bool = False,
    ) -> np.ndarray:
        """Return the action for one observation (actions,) or for a batch (rows, actions), in the robot's units.

        An observation is a state, or a dict of a state and images by camera. `instruction` is the task's text.
        `dataset` names the training data, where several robots have inputs of the same sizes. An instruction that was
        not in training is refused where several are known, unless `any_instruction`.
        """
        where: dict[str, Any] = {"instruction": instruction, "dataset": dataset, "any_instruction": any_instruction}
        queries, is_batch = self.policy.prepare(observation, **where, seed=self._seed, step=self._step)
        replies = self.policy.act(queries)
        self._step += 1
        return np.stack([reply.action for reply in replies]) if is_batch else replies[0].action

    def value(self, observation: ObservationLike, **where: Any) -> np.ndarray | float:
        """Return the critic's value of one observation, or of each in a batch, in units of the rewards.

        PAC+V has a value. With PAC and BC+Q it is the mean of Q over actions of the policy. `where` is as for `act`.
        """
        queries, is_batch = self.policy.prepare(observation, **where)
        values = self.policy.value(queries)
        return values if is_batch else float(values[0])

    def q(self, observation: ObservationLike, action: np.ndarray, **where: Any) -> np.ndarray | float:
        """Return the critic's value of an action in an observation, or of each pair in a batch (PAC and BC+Q)."""
        queries, is_batch = self.policy.prepare(observation, **where)
        values = self.policy.q(queries, np.asarray(action) if is_batch else np.asarray(action)[None])
        return values if is_batch else float(values[0])

    # ------------------------------------------------------------------------------------------- evaluating, improving

    def evaluate(
        self,
        tasks: Tasks,
        *,
        episodes: int = 50,
        seed: int = 0,
        instruction: str | None = None,
        any_instruction: bool = False,
        max_steps: int | None = None,
        stop_at_success: bool = False,
        cameras: Sequence[str] = (),
        workers: int | None = None,
        json: str | Path | None = None,
    ) -> Evaluation:
        """Play evaluation episodes and return success and return per task, with 95% intervals.

        A task is a name ("metaworld/drawer-open"), a Gymnasium id, an environment, or a function that makes one.
        `instruction` is shown in place of the task's. The other options are those of `pac.evaluation.play.play`.
        """
        return play(
            {self._label: self.actor(instruction=instruction)},
            tasks,
            episodes,
            seed=seed,
            any_instruction=any_instruction,
            max_steps=max_steps,
            stop_at_success=stop_at_success,
            cameras=cameras,
            workers=workers,
            json=json,
        )

    def actor(self, label: str | None = None, *, instruction: str | None = None) -> Actor:
        """Return this agent as `pac.evaluation.evaluate` takes it."""
        policy = copy.copy(self.policy)
        policy.values, policy.instruction = self.critic != "none", instruction
        choices: dict[str, Any] = {"sampling": policy.sampling, "instruction": instruction}
        return Actor(label=label or self._label, checkpoint=str(self.path), policy=policy, **choices)

    @property
    def _label(self) -> str:
        return self.path.name or str(self.path)

    def improve(self, tasks: Tasks, *, rounds: int = 3, out: str | Path | None = None, **settings: Any) -> "Agent":
        """Repeat rounds of collecting, training and evaluating, and return the best agent.

        It starts from this agent and keeps its data. `settings` are keys of [improve] (docs/improve.md), such as
        `episodes`, and settings of training, such as `batch_size`. `out` is the folder of the improvement, by default
        the agent's with `-improved`. A second call continues there. Environments of your own run in this process.
        """
        names = task_names(tasks)
        out = Path(out) if out is not None else self.path.with_name(f"{self.path.name}-improved")
        chosen = {"improve.tasks": names, "improve.rounds": rounds, **improve_settings(settings)}
        if given := [name for name in names if is_given(name)]:
            chosen |= {"improve.workers": 0} | ({"improve.envs_per_worker": 1} if one_at_a_time(given[0]) else {})
        overrides = [as_override(name, value) for name, value in chosen.items()]
        console = make_console()
        command = shlex.join(["pac", "improve", str(self.path), *overrides, "--out", str(out)])
        if not given:
            console.print(f"The same as: {command}", markup=False, highlight=False, soft_wrap=True)
        resume = (out / CONFIG).is_file()
        try:
            status, folder = improve_in(out, self.path, overrides, console, resume=resume)
        except StoppedError as stopped:
            raise KeyboardInterrupt(f"Stopped. The same call continues in {out}.") from stopped
        console.print(f"{out}: {len(folder.rounds)} rounds. {ENDS[status]}", markup=False, soft_wrap=True)
        return Agent.load(best_checkpoint(folder, self.path), sampling=self.policy.sampling)

    def save(self, path: str | Path) -> Path:
        """Write all that acting needs into a folder, which `pac.load` opens. An older copy there is replaced."""
        path = Path(path)
        if path.exists() and not is_saved(path):
            fix = "Name a new folder."
            raise problem(path, expected="a new folder or one of `save`", found="other files", fix=fix)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as parent:
            place = Path(parent) / "new"
            place.mkdir()
            model = self.policy.model
            weights = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
            write_pretrained(weights, place, model.config, self.policy.metadata.as_json())
            if (trained := pretrained_folder(self.path) / TRAIN_CONFIG).is_file():
                shutil.copyfile(trained, place / TRAIN_CONFIG)
            if path.exists():
                path.rename(Path(parent) / "old")
            place.rename(path)
        return path


def is_saved(path: Path) -> bool:
    """Return whether a folder holds what `Agent.save` writes, and nothing else."""
    return path.is_dir() and {file.name for file in path.iterdir()} <= {CONFIG, WEIGHTS, TRAIN_CONFIG}


def best_checkpoint(folder: ImproveFolder, start: Path) -> Path:
    """Return the improvement's folder, or where it started if no round was better."""
    return start if folder.promoted is None else folder.path


def improve_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their dotted keys. A key of [improve] goes before one of training with the same name."""
    own = {field.name for field in dataclasses.fields(ImproveConfig)}
    found = {}
    for name, value in settings.items():
        if name not in own and "." not in name and name not in short_names():
            raise ValueError(f"Unknown setting {name!r}.{suggest(name, {*own, *short_names()})}")
        found[f"improve.{name}" if name in own else name] = value
    return found
