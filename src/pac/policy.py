"""A policy from a checkpoint: raw observations in, raw actions out, prepared exactly as in training.

`PolicyMetadata` holds the facts of the training data that acting needs: cameras and their slots, instructions, and the
bounds and statistics of each dataset. It is stored in the checkpoint's config.json.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pac.data.images import resize_images
from pac.data.relabel import GoalImages, find_goal_images
from pac.data.sampler import Sampler
from pac.data.store import IMAGES, STATE, Dataset
from pac.data.tokenizer import Tokenizer
from pac.files import problem
from pac.model import PAC, Encoded
from pac.model.cuda_graphs import CapturedGraph
from pac.model.pretrained import load_config, load_weights
from pac.objectives import sample_actions
from pac.old_names import EMBODIMENT_KEYS, rename_keys
from pac.types import Observation, Query, Reply, Sampling, TaskSpec

ROWS = 16  # size of every batch of queries: an answer must not depend on the number of other queries


@dataclass(frozen=True, kw_only=True)
class EmbodimentStats:
    """Bounds, statistics and cameras of one dataset of the training."""

    name: str
    instructions: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    proprio_centre: tuple[float, ...]
    proprio_scale: tuple[float, ...]
    cameras: tuple[str, ...] = ()
    value_scale: float = 1.0  # value of the model / value of the raw rewards
    language_conditioned: bool = True  # instructions were shown in training
    goal_cameras: tuple[str, ...] = ()  # cameras whose goal images were shown in training
    discount: float | None = None  # gamma of its values; None in older checkpoints: the metadata's


@dataclass(frozen=True, kw_only=True)
class PolicyMetadata:
    """Facts of the training data that a policy needs."""

    cameras: dict[str, int]  # name -> slot of the model
    goal_cameras: dict[str, int]
    image_size: tuple[int, int]
    discount: float  # the objective's
    embodiments: tuple[EmbodimentStats, ...]

    @classmethod
    def of(cls, sampler: Sampler) -> "PolicyMetadata":
        def numbers(values: np.ndarray) -> tuple[float, ...]:
            return tuple(float(x) for x in values)

        embodiments = []
        for source in sampler.sources:
            data, config = source.dataset, source.config
            embodiments.append(
                EmbodimentStats(
                    name=config.name,
                    instructions=tuple(data.instructions) if config.instruction is None else (config.instruction,),
                    action_low=numbers(data.action_low),
                    action_high=numbers(data.action_high),
                    proprio_centre=numbers(source.proprio_centre),
                    proprio_scale=numbers(source.proprio_scale),
                    cameras=source.cameras,
                    value_scale=sampler.value_scales[config.name] * float(config.reward_scale),
                    language_conditioned=config.keep_text > 0,
                    goal_cameras=source.goal_cameras if config.keep_goal > 0 else (),
                    discount=source.gamma,
                )
            )
        return cls(
            cameras=sampler.camera_slots,
            goal_cameras=sampler.goal_slots,
            image_size=sampler.image_size,
            discount=sampler.discount,
            embodiments=tuple(embodiments),
        )

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any], where: object) -> "PolicyMetadata":
        try:
            tables: list[dict[str, Any]] = content["embodiments"]
            frozen = [{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()} for table in tables]
            embodiments = tuple(EmbodimentStats(**rename_keys(fields, EMBODIMENT_KEYS)) for fields in frozen)
            others = {name: content[name] for name in ("cameras", "goal_cameras", "discount")}
            return cls(embodiments=embodiments, image_size=tuple(content["image_size"]), **others)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{where}: expected the metadata of a policy (embodiments, cameras, image_size), found it incomplete: "
                f"{error}. Use a checkpoint of `pac train`."
            ) from error

    def embodiment(self, task: TaskSpec) -> EmbodimentStats:
        """Return the statistics for a task. Sizes must agree; the instruction decides between several datasets."""
        sizes = task.state_dim, len(task.action_low)
        fits = [r for r in self.embodiments if (len(r.proprio_centre), len(r.action_low)) == sizes]
        if not fits:
            known = ", ".join(f"{r.name} {(len(r.proprio_centre), len(r.action_low))}" for r in self.embodiments)
            raise ValueError(
                f"Task {task.name!r}: expected state and action sizes that the checkpoint was trained on ({known}), "
                f"found {sizes}. Train on data of this task, or choose another."
            )
        same_instruction = [r for r in fits if task.instruction in r.instructions]
        if not same_instruction and len({dataclasses.replace(r, name="", instructions=()) for r in fits}) > 1:
            raise ValueError(
                f"Task {task.name!r}: expected an instruction that the checkpoint was trained on, found "
                f"{task.instruction!r}, and several datasets of its size, whose statistics differ: "
                f"{', '.join(r.name for r in fits)}. Train on data of this task, or choose another."
            )
        return (same_instruction or fits)[0]

    def discount_at(self, task: TaskSpec) -> float:
        """Return the discount of the values at a task."""
        own = self.embodiment(task).discount
        return self.discount if own is None else own


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Use one thread on a CPU. With more, the rounding of a row depends on its place in the batch."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Policy:
    """Model that answers queries in batches. The noise of sampled actions depends on a query's (seed, step) alone."""

    def __init__(
        self,
        model: PAC,
        metadata: PolicyMetadata,
        *,
        name: str = "policy",
        sampling: Sampling = "sample",
        best_of: int = 1,  # sample this many actions and take the one of highest value
        values: bool = False,  # reply with the critic's value, too
        text: bool = True,  # show instructions, if training did
        goals: GoalImages | None = None,  # goal images to show, one per episode; {}: show none, even if training did
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if best_of < 1 or (best_of > 1 and not model.config.q_head):
            raise ValueError(
                f"Policy: expected best_of of at least 1, and 1 for a model without a Q head, found {best_of}."
            )
        if sampling not in get_args(Sampling):
            raise ValueError(f"Policy: expected sampling among {', '.join(get_args(Sampling))}, found {sampling!r}.")
        self.model, self.metadata, self.name = model, metadata, name
        self.sampling, self.best_of, self.values, self.text, self.goals = sampling, best_of, values, text, goals
        self.tokenizer = tokenizer or Tokenizer()
        self.device = next(model.parameters()).device
        self.cameras = tuple(metadata.cameras)
        self._fixed: dict[tuple[EmbodimentStats, str], dict[str, Tensor]] = {}
        self._captured: dict[Any, CapturedGraph[dict[str, Tensor], Tensor]] = {}

    def reload_weights(self, path: str | Path, name: str) -> bool:
        """Copy the weights of another checkpoint in place. Captured CUDA graphs stay valid.

        Return False and change nothing if the models differ.
        """
        content = load_config(path)
        if content["model"] != self.model.config:
            return False
        load_weights(self.model, path)
        self.metadata, self.name = PolicyMetadata.from_json(content, path), name
        self.cameras = tuple(self.metadata.cameras)
        for cache in (self._fixed, self._captured):
            for key in [key for key in cache if key[0] not in self.metadata.embodiments]:
                del cache[key]
        return True

    def act(self, queries: Sequence[Query]) -> list[Reply]:
        """Return one reply per query, in order."""
        groups: dict[Any, list[int]] = {}
        for i, query in enumerate(queries):
            embodiment = self.metadata.embodiment(query.task)
            groups.setdefault((embodiment.name, query.task.instruction), []).append(i)
        replies: dict[int, Reply] = {}
        with one_thread(self.device):
            for members in groups.values():
                for first in range(0, len(members), ROWS):
                    batch = members[first : first + ROWS]
                    replies |= zip(batch, self._answer([queries[i] for i in batch]), strict=True)
        return [replies[i] for i in range(len(queries))]

    @torch.inference_mode()
    def _answer(self, queries: list[Query]) -> list[Reply]:
        """Return replies to at most ROWS queries of one embodiment and one instruction."""
        embodiment, num_actions = self.metadata.embodiment(queries[0].task), len(queries[0].task.action_low)
        rows = queries + [queries[-1]] * (ROWS - len(queries))
        noise = self._noise(rows, num_actions)
        if self.device.type == "cuda" and not (embodiment.cameras or embodiment.goal_cameras):
            found = self._replay(rows, embodiment, noise)
        else:
            found = self._choose(self.model.encode(self._observe(rows, embodiment)), noise.to(self.device))
        chosen, values = found.cpu().split([num_actions, found.shape[1] - num_actions], 1)
        expected = values[:, 0].numpy() / embodiment.value_scale if values.shape[1] else None
        low, high = np.array(embodiment.action_low), np.array(embodiment.action_high)
        raw = (low + (chosen.numpy() + 1) / 2 * (high - low)).astype(np.float32)
        return [
            Reply(
                action=np.clip(raw[i], query.task.action_low, query.task.action_high).astype(np.float32),
                value=float(expected[i]) if self.values and expected is not None else None,
            )
            for i, query in enumerate(queries)
        ]

    def _choose(self, encoded: Encoded, noise: Tensor) -> Float[Tensor, "row numbers"]:
        """Return one action per row, followed by its value if values are needed and there is a critic."""
        actions = self._candidates(encoded, noise)
        values = self._value(encoded, actions)
        if values is None:
            return actions[:, 0]
        best = values.argmax(-1, keepdim=True)
        action = actions.gather(1, best[..., None].expand(-1, -1, actions.shape[-1]))[:, 0]
        return torch.cat([action, values.gather(1, best)], 1)

    def _candidates(self, encoded: Encoded, noise: Tensor) -> Float[Tensor, "row sample action"]:
        """Return `best_of` actions per row."""
        logits, bins = self.model.policy_logits(encoded, noise.shape[1]), self.model.config.action_bins
        if self.sampling == "interquartile":
            noise = 0.25 + noise / 2
        if self.best_of > 1 or self.sampling in ("sample", "interquartile"):
            return bins.decode(sample_actions(logits, self.best_of, uniform=noise), logits)
        if self.sampling == "mode":
            return bins.decode(logits.argmax(-1), logits)[:, None]
        return (bins.median(logits) if self.sampling == "median" else bins.mean(logits))[:, None]

    def _replay(self, queries: list[Query], embodiment: EmbodimentStats, noise: Tensor) -> Tensor:
        """Return what `_choose` does, by a CUDA graph per embodiment and instruction. Observations have no images."""
        inputs = {"proprio": torch.from_numpy(self._states(queries, embodiment)), "noise": noise}
        instruction = queries[0].task.instruction
        key = (embodiment, instruction, self.sampling, noise.shape)
        if key not in self._captured:
            fixed = self._constants(embodiment, instruction)

            def compute(inputs: dict[str, Tensor]) -> Tensor:
                return self._choose(self.model.encode(Observation.of(inputs["proprio"], **fixed)), inputs["noise"])

            self._captured[key] = CapturedGraph(compute, inputs, self.device, warm_up=3)
        return self._captured[key](inputs)

    def _noise(self, queries: list[Query], num_actions: int) -> Tensor:
        """Return one uniform number per action dimension and sample, by (seed, step)."""

        def draw(query: Query) -> np.ndarray:
            key = np.array([query.seed % 2**64, query.step], np.uint64)
            return np.random.Generator(np.random.Philox(key=key)).random((num_actions, self.best_of), np.float32)

        return torch.from_numpy(np.stack([draw(query) for query in queries]))

    def _value(self, encoded: Encoded, actions: Tensor) -> Tensor | None:
        if not (self.values or self.best_of > 1):
            return None
        bins = self.model.config.value_bins
        if self.model.config.q_head:
            mask = torch.ones_like(actions[:, 0], dtype=torch.bool)
            return bins.mean(self.model.q_logits(encoded, actions, mask))
        return bins.mean(self.model.v_logits(encoded))[:, None] if self.model.config.v_head else None

    def _observe(self, queries: list[Query], embodiment: EmbodimentStats) -> Observation:
        proprio = torch.from_numpy(self._states(queries, embodiment)).to(self.device)
        fields = dict(self._constants(embodiment, queries[0].task.instruction))
        names = [name for name in embodiment.cameras if IMAGES + name in queries[0].observation]
        if len(names) < len(embodiment.cameras):
            missing = sorted(set(embodiment.cameras) - set(names))
            raise ValueError(
                f"Task {queries[0].task.name!r}: expected the checkpoint's cameras, found no {missing}. "
                f"Evaluate with --cameras {' '.join(embodiment.cameras)}."
            )
        if names:
            images = np.stack([[query.observation[IMAGES + name] for name in names] for query in queries])
            fields["images"], fields["camera_slots"] = self._images(images, names, self.metadata.cameras)
        return Observation.of(proprio, **fields, **self._show_goals(queries, embodiment))

    def _show_goals(self, queries: list[Query], embodiment: EmbodimentStats) -> dict[str, Tensor]:
        """Return goal images for each episode, chosen by its seed alone."""
        instruction = queries[0].task.instruction
        goals = (self.goals or {}).get(instruction, {})
        names = [name for name in embodiment.goal_cameras if name in goals]
        if self.goals is None and embodiment.goal_cameras and not embodiment.language_conditioned:
            raise ValueError(
                f"Task {queries[0].task.name!r}: expected goal images, because {self.name} was trained without "
                "instructions, found none. Evaluate with --goals DATASET, a dataset with successes at the task."
            )
        if len(names) < len(embodiment.goal_cameras) and self.goals:
            raise ValueError(
                f"Task {queries[0].task.name!r}: expected goal images of {instruction!r} by the cameras "
                f"{', '.join(embodiment.goal_cameras)}, found {sorted(goals) or 'none'}. Name a dataset with them."
            )
        if not names:
            return {}
        chosen = np.stack([[goals[name][query.seed % len(goals[name])] for name in names] for query in queries])
        images, slots = self._images(chosen, names, self.metadata.goal_cameras)
        return {"goal_images": images, "goal_slots": slots}

    def _images(self, images: np.ndarray, cameras: list[str], slots: dict[str, int]) -> tuple[Tensor, Tensor]:
        """Return images at the model's size, and the slot of each."""
        resized, (height, width) = torch.from_numpy(images), self.metadata.image_size
        if images.shape[-3:-1] != (height, width):
            resized = resize_images(resized, (height, width))
        places = torch.tensor([slots[name] for name in cameras], device=self.device)
        return resized.to(self.device), places.expand(len(images), -1)

    def _constants(self, embodiment: EmbodimentStats, instruction: str) -> dict[str, Tensor]:
        """Return the parts that all observations of an embodiment at a task share."""
        key = (embodiment, instruction)
        if key not in self._fixed:
            ids, mask = self.tokenizer.encode(instruction if embodiment.language_conditioned and self.text else "")
            found = {"text": torch.from_numpy(ids[mask])}
            found |= {name: torch.tensor(getattr(embodiment, name)) for name in ("proprio_centre", "proprio_scale")}
            self._fixed[key] = {name: x.to(self.device).expand(ROWS, -1) for name, x in found.items()}
        return self._fixed[key]

    def _states(self, queries: list[Query], embodiment: EmbodimentStats) -> np.ndarray:
        size = len(embodiment.proprio_centre)
        states = [query.observation.get(STATE, np.zeros(0, np.float32)) for query in queries]
        for query, state in zip(queries, states, strict=True):
            if state.shape != (size,):
                raise ValueError(
                    f"Task {query.task.name!r}: expected {STATE} of shape ({size},), found {state.shape}. Observe as "
                    "the training data did."
                )
        return np.stack(states).astype(np.float32)


def load(path: str | Path, *, device: str | None = None, name: str | None = None, **options: Any) -> Policy:
    """Return the policy in a run, a checkpoint, or a folder of `save_pretrained`. `options` are those of `Policy`."""
    metadata = PolicyMetadata.from_json(load_config(path), path)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Policy(PAC.from_pretrained(path).to(device), metadata, name=name or str(path), **options)


def read_goals(paths: Sequence[str | Path]) -> GoalImages:
    """Return goal images from datasets: those they store, or else the last frames of their successes."""
    found: GoalImages = {}
    for path in paths:
        dataset = Dataset(path)
        goals = find_goal_images(dataset, stored=bool((dataset.index["goal"] >= 0).any()))
        if not any(goals.values()):
            expected, fix = "goal images, or images of successes", "Collect with --cameras, by an actor that succeeds."
            raise problem(path, expected=expected, found="neither", fix=fix)
        found |= goals
    return found
