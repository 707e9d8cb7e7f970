"""A policy from a checkpoint: raw observations in, raw actions out, prepared exactly as in training.

`observations` checks what comes in. `embodiments` chooses the statistics and the instruction of each query.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from pac.data.images import resize_images
from pac.data.relabel import GoalImages, find_goal_images
from pac.data.statistics import normalise_action
from pac.data.store import STATE, Dataset
from pac.data.tokenizer import Tokenizer
from pac.embodiments import EmbodimentStats, Match, PolicyMetadata, show_once
from pac.files import problem
from pac.model import PAC, Encoded
from pac.model.cuda_graphs import CapturedGraph
from pac.model.pretrained import load_config, load_weights
from pac.objectives import sample_actions
from pac.observations import (
    check_actions,
    check_queries,
    check_rows,
    model_problem,
    read_observation,
    stack_images,
    stack_states,
)
from pac.types import Observation, Query, Reply, Sampling, TaskSpec

__all__ = ["ROWS", "EmbodimentStats", "Policy", "PolicyMetadata", "load", "one_thread", "read_goals"]

ROWS = 16  # size of every batch of queries: an answer must not depend on the number of other queries
VALUE_SAMPLES = 10  # actions over which `value` averages Q
MOST_MATCHES = 1_000  # tasks whose statistics and instruction a policy remembers


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
        instruction: str | None = None,  # shown in place of that of every task
    ) -> None:
        if best_of < 1 or (best_of > 1 and not model.config.q_head):
            raise ValueError(
                f"Policy: expected best_of of at least 1, and 1 for a model without a Q head, found {best_of}."
            )
        if sampling not in get_args(Sampling):
            raise ValueError(f"Policy: expected sampling among {', '.join(get_args(Sampling))}, found {sampling!r}.")
        self.model, self.metadata, self.name = model, metadata, name
        self.sampling, self.best_of, self.values, self.text, self.goals = sampling, best_of, values, text, goals
        self.tokenizer, self.instruction = tokenizer or Tokenizer(), instruction
        self.device = next(model.parameters()).device
        self.cameras = tuple(metadata.cameras)
        self._fixed: dict[tuple[EmbodimentStats, str], dict[str, Tensor]] = {}
        self._matches: dict[tuple[Any, ...], Match] = {}
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
        self._matches.clear()
        for cache in (self._fixed, self._captured):
            for key in [key for key in cache if key[0] not in self.metadata.embodiments]:
                del cache[key]
        return True

    def prepare(
        self,
        observation: object,
        *,
        instruction: str | None = None,
        dataset: str | None = None,
        seed: int = 0,
        step: int = 0,
        any_instruction: bool = False,
    ) -> tuple[list[Query], bool]:
        """Return the queries of an observation, and whether it was a batch.

        An observation is an array, the state, or a dict of "observation.state" (or "state") and
        "observation.images.<camera>" (or "<camera>"), of one step or of a batch. Row i draws its noise by (seed + i,
        step). The state's size and the instruction choose the dataset whose statistics apply, or `dataset` names it.
        """
        features, batched = read_observation(observation, self.cameras)
        size, free = features[STATE].shape[1] if STATE in features else 0, any_instruction or not self.text
        embodiment, text, _ = self._remember(
            (size, instruction, dataset, any_instruction),
            lambda: self.metadata.match_state(size, instruction, dataset=dataset, any_instruction=free),
        )
        check_rows(features, embodiment, lambda row: f"Row {row}, " if batched else "")
        task = TaskSpec(
            name=embodiment.name,
            instruction=text,
            state_dim=len(embodiment.proprio_centre),
            action_low=embodiment.action_low,
            action_high=embodiment.action_high,
            max_steps=1,
            has_success=False,
            cameras=embodiment.cameras,
        )
        queries = [
            Query(
                task=task,
                observation={name: array[i] for name, array in features.items()},
                seed=seed + i,
                step=step,
                dataset=embodiment.name,
                any_instruction=any_instruction,
            )
            for i in range(len(next(iter(features.values()))))
        ]
        return queries, batched

    def act(self, queries: Sequence[Query]) -> list[Reply]:
        """Return one reply per query, in order."""
        replies: dict[int, Reply] = {}
        with one_thread(self.device):
            for match, batch in self._batches(queries):
                replies |= zip(batch, self._answer([queries[i] for i in batch], match), strict=True)
        return [replies[i] for i in range(len(queries))]

    def value(self, queries: Sequence[Query]) -> Float32[np.ndarray, " row"]:
        """Return the value of each query's observation, in units of raw rewards.

        PAC+V has a head for it. PAC and BC+Q average Q over 10 actions, which are sampled from the policy with the
        noise of (seed, step).
        """
        config = self.model.config
        if not (config.q_head or config.v_head):
            raise self._no_head("a critic", "pac, bc+q and pac+v")

        def score(encoded: Encoded, rows: list[Query], members: list[int]) -> Tensor:
            if not config.q_head:
                return config.value_bins.mean(self.model.v_logits(encoded))
            noise = self._noise(rows, len(rows[0].task.action_low), VALUE_SAMPLES).to(self.device)
            actions = self._sample(encoded, noise)
            broken = actions.isnan().any(-1)  # the encoder of actions may hide NaN
            return self._q(encoded, actions).masked_fill(broken, torch.nan).mean(1)

        return self._score(queries, score)

    def q(self, queries: Sequence[Query], actions: object) -> Float32[np.ndarray, " row"]:
        """Return the critic's value of one raw action per query, in units of raw rewards."""
        if not self.model.config.q_head:
            raise self._no_head("a Q head", "pac and bc+q")
        entries = [self._match(query).embodiment for query in queries]
        checked = check_actions(actions, queries, entries)

        def score(encoded: Encoded, rows: list[Query], members: list[int]) -> Tensor:
            low, high = (np.array(getattr(entries[members[0]], f"action_{end}"), np.float32) for end in ("low", "high"))
            chosen = torch.from_numpy(normalise_action(checked[members], low, high)).to(self.device)
            return self._q(encoded, chosen[:, None])[:, 0]

        return self._score(queries, score)

    def _no_head(self, head: str, methods: str) -> ValueError:
        found = "a V head alone (pac+v)" if self.model.config.v_head else "a policy without a critic (bc, filtered-bc)"
        fix = f"Train with one of the methods {methods}."
        return problem(f"Policy {self.name}", expected=f"{head}, which {methods} train", found=found, fix=fix)

    def _match(self, query: Query) -> Match:
        """Return the statistics and the instruction of a query."""
        free = query.any_instruction or not self.text
        task = query.task
        if self.instruction is not None and task.instruction != self.instruction:
            task = dataclasses.replace(task, instruction=self.instruction)
        return self._remember(
            (task, query.dataset, query.any_instruction),
            lambda: self.metadata.match(task, dataset=query.dataset, any_instruction=free),
        )

    def _remember(self, key: tuple[Any, ...], find: Callable[[], Match]) -> Match:
        """Return what `find` returned for this key. A note about it is shown once."""
        if key not in self._matches:
            if len(self._matches) >= MOST_MATCHES:
                self._matches.clear()
            found = find()
            show_once(found.note)
            self._matches[key] = found
        return self._matches[key]

    def _batches(self, queries: Sequence[Query]) -> Iterator[tuple[Match, list[int]]]:
        """Yield the places of at most ROWS queries of one embodiment and one instruction."""
        groups: dict[tuple[str, str], tuple[Match, list[int]]] = {}
        for i, query in enumerate(queries):
            match = self._match(query)
            groups.setdefault((match.embodiment.name, match.instruction), (match, []))[1].append(i)
        for match, members in groups.values():
            for first in range(0, len(members), ROWS):
                yield match, members[first : first + ROWS]

    @torch.inference_mode()
    def _answer(self, queries: list[Query], match: Match) -> list[Reply]:
        """Return replies to at most ROWS queries of one embodiment and one instruction."""
        embodiment, num_actions = match.embodiment, len(match.embodiment.action_low)
        rows = self._padded(queries, embodiment)
        noise = self._noise(rows, num_actions, self.best_of)
        if self.device.type == "cuda" and not (embodiment.cameras or embodiment.goal_cameras):
            found = self._replay(rows, match, noise)
        else:
            found = self._choose(self.model.encode(self._observe(rows, match)), noise.to(self.device))
        numbers = found.cpu().numpy()
        if not np.isfinite(numbers).all():
            raise model_problem(numbers, queries, self.name, "action and value" if self.values else "action")
        chosen, values = numbers[:, :num_actions], numbers[:, num_actions:]
        expected = values[:, 0] / embodiment.value_scale if values.shape[1] else None
        low, high = np.array(embodiment.action_low), np.array(embodiment.action_high)
        raw = (low + (chosen + 1) / 2 * (high - low)).astype(np.float32)
        return [
            Reply(
                action=np.clip(raw[i], query.task.action_low, query.task.action_high).astype(np.float32),
                value=float(expected[i]) if self.values and expected is not None else None,
            )
            for i, query in enumerate(queries)
        ]

    @torch.inference_mode()
    def _score(
        self, queries: Sequence[Query], score: Callable[[Encoded, list[Query], list[int]], Tensor]
    ) -> Float32[np.ndarray, " row"]:
        """Return one number per query. `score` gets ROWS queries and their places, of which the last may repeat."""
        found = np.zeros(len(queries), np.float32)
        with one_thread(self.device):
            for match, batch in self._batches(queries):
                rows = self._padded([queries[i] for i in batch], match.embodiment)
                members = batch + [batch[-1]] * (ROWS - len(batch))
                values = score(self.model.encode(self._observe(rows, match)), rows, members)
                found[batch] = values.cpu().numpy()[: len(batch)] / match.embodiment.value_scale
        if not np.isfinite(found).all():
            raise model_problem(found[:, None], queries, self.name, "value")
        return found

    def _padded(self, queries: list[Query], embodiment: EmbodimentStats) -> list[Query]:
        """Return ROWS queries, of which the last may repeat. Raise if one has other features than the embodiment."""
        check_queries(queries, embodiment)
        return queries + [queries[-1]] * (ROWS - len(queries))

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
        if self.sampling == "interquartile":
            noise = 0.25 + noise / 2
        if self.best_of > 1 or self.sampling in ("sample", "interquartile"):
            return self._sample(encoded, noise)
        logits, bins = self.model.policy_logits(encoded, noise.shape[1]), self.model.config.action_bins
        if self.sampling == "mode":
            found = bins.decode(logits.argmax(-1), logits)
        else:
            found = bins.median(logits) if self.sampling == "median" else bins.mean(logits)
        return keep_nan(found[:, None], logits)

    def _sample(self, encoded: Encoded, noise: Tensor) -> Float[Tensor, "row sample action"]:
        """Return one action per row and sample of the noise."""
        logits, bins = self.model.policy_logits(encoded, noise.shape[1]), self.model.config.action_bins
        return keep_nan(bins.decode(sample_actions(logits, noise.shape[2], uniform=noise), logits), logits)

    def _replay(self, queries: list[Query], match: Match, noise: Tensor) -> Tensor:
        """Return what `_choose` does, by a CUDA graph per embodiment and instruction. Observations have no images."""
        embodiment, instruction = match.embodiment, match.instruction
        inputs = {"proprio": torch.from_numpy(stack_states(queries, embodiment)), "noise": noise}
        key = (embodiment, instruction, self.sampling, noise.shape)
        if key not in self._captured:
            fixed = self._constants(embodiment, instruction)

            def compute(inputs: dict[str, Tensor]) -> Tensor:
                return self._choose(self.model.encode(Observation.of(inputs["proprio"], **fixed)), inputs["noise"])

            self._captured[key] = CapturedGraph(compute, inputs, self.device, warm_up=3)
        return self._captured[key](inputs)

    def _noise(self, queries: list[Query], num_actions: int, num_samples: int) -> Tensor:
        """Return one uniform number per action dimension and sample, by (seed, step)."""

        def draw(query: Query) -> np.ndarray:
            key = np.array([query.seed % 2**64, query.step], np.uint64)
            return np.random.Generator(np.random.Philox(key=key)).random((num_actions, num_samples), np.float32)

        drawn: list[np.ndarray] = []
        for i, query in enumerate(queries):  # padding repeats the last query
            drawn.append(drawn[-1] if i and query is queries[i - 1] else draw(query))
        return torch.from_numpy(np.stack(drawn))

    def _value(self, encoded: Encoded, actions: Tensor) -> Tensor | None:
        if not (self.values or self.best_of > 1):
            return None
        if self.model.config.q_head:
            return self._q(encoded, actions)
        bins = self.model.config.value_bins
        return bins.mean(self.model.v_logits(encoded))[:, None] if self.model.config.v_head else None

    def _q(self, encoded: Encoded, actions: Float[Tensor, "row sample action"]) -> Float[Tensor, "row sample"]:
        mask = torch.ones_like(actions[:, 0], dtype=torch.bool)
        return self.model.config.value_bins.mean(self.model.q_logits(encoded, actions, mask))

    def _observe(self, queries: list[Query], match: Match) -> Observation:
        embodiment = match.embodiment
        proprio = torch.from_numpy(stack_states(queries, embodiment)).to(self.device)
        fields = dict(self._constants(embodiment, match.instruction))
        if names := list(embodiment.cameras):
            images = stack_images(queries, names, self.metadata.image_size)
            fields["images"], fields["camera_slots"] = self._images(images, names, self.metadata.cameras)
        return Observation.of(proprio, **fields, **self._show_goals(queries, match))

    def _show_goals(self, queries: list[Query], match: Match) -> dict[str, Tensor]:
        """Return goal images for each episode, chosen by its seed alone."""
        embodiment, instruction = match.embodiment, match.instruction
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


def keep_nan(actions: Float[Tensor, "row sample action"], logits: Tensor) -> Float[Tensor, "row sample action"]:
    """Return NaN for rows whose logits are not finite. Sampling from NaN would give a bin like any other."""
    total = logits.sum((1, 2))
    return actions + (total - total)[:, None, None]  # plus 0, or plus NaN


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
