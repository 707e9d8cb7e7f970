"""Facts of the training data that acting needs, one entry per dataset, and the rule that chooses a task's entry.

`PolicyMetadata` is stored in the checkpoint's config.json. Sizes choose first, then the instruction.
"""

import dataclasses
import difflib
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pac.config import suggest
from pac.data.sampler import Sampler
from pac.data.spec import STATE
from pac.files import PlainWarning, problem
from pac.old_names import EMBODIMENT_KEYS, rename_keys
from pac.types import TaskSpec

MOST_LISTED = 10  # instructions, datasets or dimensions in an error
_SHOWN: set[str] = set()  # notes that this process has shown


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
    state_names: tuple[str, ...] = ()  # of the dimensions; (): the dataset has none, or the checkpoint is older
    action_names: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the number of state and of action dimensions."""
        return len(self.proprio_centre), len(self.action_low)


class Match(NamedTuple):
    """The entry and the instruction that a policy uses for a query."""

    embodiment: EmbodimentStats
    instruction: str
    note: str = ""  # about an instruction or statistics that the query did not name


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
                    state_names=data.spec.state_names,
                    action_names=data.spec.action_names,
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

    def match(self, task: TaskSpec, *, dataset: str | None = None, any_instruction: bool = False) -> Match:
        """Return the entry and the instruction for a task. Raise if there is none, or if several differ."""
        where, sizes = f"Task {task.name!r}", (task.state_dim, len(task.action_low))
        fits = [one for one in self.named(dataset) if one.sizes == sizes]
        if not fits:
            known = ", ".join(f"{one.name} {one.sizes}" for one in self.named(dataset)[:MOST_LISTED])
            raise problem(
                where,
                expected=f"state and action sizes that the checkpoint was trained on ({known})",
                found=sizes,
                fix="Train on data of this task, or choose another.",
            )
        return choose(fits, task.instruction, where=where, any_instruction=any_instruction)

    def match_state(
        self, size: int, instruction: str | None, *, dataset: str | None = None, any_instruction: bool = False
    ) -> Match:
        """Return the entry and the instruction for states of a size, without an environment that says more."""
        named, where = self.named(dataset), "Observation"
        fits = [one for one in named if one.sizes[0] == size]
        if not fits:
            known = [f"{one.sizes[0]} dimensions{listed(one.state_names)} as in {one.name!r}" for one in named]
            fix = "Observe as the training data did."
            raise problem(STATE, expected=" or ".join(known[:MOST_LISTED]), found=size or "no state", fix=fix)
        match = choose(fits, instruction, where=where, any_instruction=any_instruction)
        rivals = [one for one in fits if match.instruction in one.instructions]
        if len({(one.action_low, one.action_high, one.cameras) for one in rivals}) > 1:
            names = ", ".join(one.name for one in rivals[:MOST_LISTED])
            expected = "a state and an instruction that only one dataset has"
            found = f"several, whose actions or cameras differ: {names}"
            raise problem(where, expected=expected, found=found, fix="Name one of them with dataset=.")
        return match

    def named(self, dataset: str | None) -> list[EmbodimentStats]:
        """Return the entry of a dataset, or all entries for None."""
        found = [one for one in self.embodiments if dataset in (None, one.name)]
        if not found:
            names = [one.name for one in self.embodiments]
            expected = f"one of {', '.join(names[:MOST_LISTED])}"
            raise problem("dataset", expected=expected, found=repr(dataset), fix=suggest(str(dataset), names).strip())
        return found

    def embodiment(self, task: TaskSpec, *, any_instruction: bool = False) -> EmbodimentStats:
        """Return the statistics for a task."""
        return self.match(task, any_instruction=any_instruction).embodiment

    def cameras_at(self, task: TaskSpec) -> tuple[str, ...]:
        """Return the cameras that a policy uses at a task."""
        return self.embodiment(task).cameras

    def discount_at(self, task: TaskSpec) -> float:
        """Return the discount of the values at a task that the policy acts in."""
        own = self.embodiment(task, any_instruction=True).discount
        return self.discount if own is None else own


def choose(
    fits: Sequence[EmbodimentStats], instruction: str | None, *, where: str, any_instruction: bool = False
) -> Match:
    """Return the entry whose instruction is given, or an answer to an instruction that was not in training.

    The only known instruction takes its place. With several known ones it is refused, unless `any_instruction`. No
    instruction (None) means the only known one.
    """
    known = list(dict.fromkeys(text for one in fits for text in one.instructions if text))
    text = instruction or ""
    same = [one for one in fits if text in one.instructions]
    if same or not known:
        return Match(same[0], text) if same else Match(fits[0], "")
    shown = any(one.language_conditioned for one in fits if any(one.instructions))
    if len(known) == 1 and (instruction is None or not (shown and any_instruction)):
        first = next(one for one in fits if known[0] in one.instructions)
        note = f"{where}: instruction {instruction!r} was not in training. The only one that was is used: {known[0]!r}."
        return Match(first, known[0], note if shown and instruction is not None else "")
    if not shown and not any_instruction:
        return Match(_only(fits, where, repr(instruction)), text)
    if instruction is None or not any_instruction:
        raise _unknown(where, instruction, known)
    if _alike(fits):
        return Match(fits[0], instruction)
    closest = nearest(instruction, known)[0]
    chosen = next(one for one in fits if closest in one.instructions)
    note = f"{where}: instruction {instruction!r} was not in training. The statistics of {chosen.name!r} are used."
    return Match(chosen, instruction, note)


def listed(names: Sequence[str]) -> str:
    """Return the names of dimensions for an error."""
    if not names:
        return ""
    return f" ({', '.join(names[:MOST_LISTED])}{', ...' if len(names) > MOST_LISTED else ''})"


def nearest(text: str, known: Sequence[str]) -> list[str]:
    """Return the texts that are most like `text`, the nearest first."""
    ratios = {other: difflib.SequenceMatcher(None, other.lower(), text.lower()).ratio() for other in known}
    return sorted(known, key=lambda other: -ratios[other])[:MOST_LISTED]


def show_once(note: str) -> None:
    """Warn, unless this process has shown the same note before."""
    if note and note not in _SHOWN:
        _SHOWN.add(note)
        depth, frame = 1, sys._getframe(1).f_back
        while frame is not None and frame.f_globals.get("__name__", "").startswith("pac."):
            depth, frame = depth + 1, frame.f_back  # the warning names the user's line
        warnings.warn(note, PlainWarning, stacklevel=depth + 1)


def _alike(fits: Sequence[EmbodimentStats]) -> bool:
    """Return whether entries differ in nothing but names and instructions."""
    same = {"name": "", "instructions": (), "state_names": (), "action_names": ()}
    return len({dataclasses.replace(one, **same) for one in fits}) == 1  # type: ignore[arg-type]


def _only(fits: Sequence[EmbodimentStats], where: str, found: str) -> EmbodimentStats:
    """Return the first entry. Raise if they differ, since nothing chooses between them."""
    if not _alike(fits):
        names = ", ".join(one.name for one in fits[:MOST_LISTED])
        raise problem(
            where,
            expected="an instruction that the checkpoint was trained on",
            found=f"{found}, and several datasets of its size, whose statistics differ: {names}",
            fix="Name one of their instructions, or one of the datasets with dataset=.",
        )
    return fits[0]


def _unknown(where: str, instruction: str | None, known: Sequence[str]) -> ValueError:
    texts = ", ".join(map(repr, nearest(instruction or "", known)))
    count = f"{len(known):,}, of which the nearest are" if len(known) > MOST_LISTED else f"{len(known)}:"
    return problem(
        f"{where}, instruction",
        expected=f"one of the training, which has {count} {texts}",
        found="none" if instruction is None else repr(instruction),
        fix="Name one of them. any_instruction=True (--any-instruction) allows others.",
    )
