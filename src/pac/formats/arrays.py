"""Array files: one .npz with the arguments of `pac.data.arrays.write_arrays`, one row per step.

Keys: `actions`, and `observations` or several of `observations/<name>` and `images.<camera>`. Optional are `rewards`,
`terminals`, `timeouts`, `next_observations` (or `next_observations/<name>`), `instruction` or `instructions` (one per
episode), `success`, `action_low`, `action_high`, `control_rate`, `state_names` and `action_names`.

Time alignment: row t holds the observation, the action taken in it and its reward. The next observation is row t + 1 of
the same episode. At the end of an episode it is `next_observations[t]`, or unknown.

Ends: `terminals[t]` is a true termination, `timeouts[t]` a time limit. A row with both counts as terminal. The last row
must be an end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pac.data.array_table import ArrayTable, table_of, width
from pac.data.arrays import bounds_of
from pac.data.spec import STATE
from pac.formats.checks import check
from pac.formats.common import ForeignDataset
from pac.formats.npz import names_of, open_columns
from pac.formats.options import ImportOptions, choose_keys, key_of
from pac.types import Episode

FLAGS = ("terminals", "timeouts", "success")
SMALL = ("instruction", "instructions", "action_low", "action_high", "control_rate", "state_names", "action_names")
OTHER_NAMES = {  # keys whose meaning must not be lost -> what to call them
    **dict.fromkeys(("terminations", "terminated", "dones", "done"), "terminals, or timeouts for time limits"),
    **dict.fromkeys(("truncations", "truncated"), "timeouts"),
    "masks": "terminals where they are 0, or import with --format ogbench",
    "reward": "rewards",
}
OGBENCH_ONLY = {"masks", "qpos", "qvel", "button_states"}


def is_observation(name: str) -> bool:
    return name in ("observations", "state") or name.startswith(("observations/", "observation.", "images."))


def only_here(names: set[str]) -> set[str]:
    """Return the names that an array file may have and an OGBench file has not."""
    mine = {"timeouts", "instruction", "instructions", "success", "control_rate", "action_low", "action_high"}
    return {n for n in names if n in mine or n.startswith("next_observations") or is_observation(n)} - {"observations"}


def detect(path: Path) -> bool:
    names = set(names_of(path))
    if "actions" not in names or not any(map(is_observation, names)):
        return False
    return bool(only_here(names)) or not names & OGBENCH_ONLY


def check_keys_of(path: Path) -> None:
    """Raise if an array file lacks the keys that this format needs. Say how to name them."""
    if not (names := names_of(path)):
        return

    def like(*starts: str) -> str:
        return next((name for name in names if name.lower().startswith(starts)), "KEY")

    pairs = [f"{STATE}={like('obs', 'state')}", f"action={like('act')}"]
    if (reward := like("rew")) not in ("KEY", "rewards"):
        pairs.append(f"reward={reward}")
    expected = "keys 'actions' and 'observations' (or 'observations/NAME', 'images.CAMERA')"
    fix = f"Name them: --format arrays --keys {' '.join(pairs)}"
    check(False, path, expected, f"keys {', '.join(names[:20])}", fix)


def read_dataset(path: Path, options: ImportOptions) -> ForeignDataset:
    ordered = names_of(path)
    names = set(ordered)
    fields = {"actions": key_of("action", "actions", options), "rewards": key_of("reward", "rewards", options)}
    observed = [name for name in ordered if is_observation(name) or name in options.named_keys - {*fields.values()}]
    following = {name: _next_name(name) for name in observed if _next_name(name) in names}
    unmatched = sorted(n for n in names if n.startswith("next_observations") and n not in following.values())
    fix = "Name next observations like the observations: 'next_observations/state' for 'observations/state'."
    check(not unmatched, path, "next observations of an observation", ", ".join(unmatched), fix)
    for name, meaning in OTHER_NAMES.items():
        fix = f"Rename it: {meaning}."
        check(name not in names or name in options.named_keys, path, "known keys", f"key {name!r}", fix)
    known = {*observed, *following.values(), *fields.values(), *FLAGS, *SMALL}
    with open_columns(path, names & known | {fields["actions"]}) as columns:
        small = {name: columns[name].value() for name in SMALL if name in columns}
        table = table_of(
            str(path),
            observations={name: columns[name] for name in observed},
            next_observations={name: columns[other] for name, other in following.items()} or None,
            actions=columns[fields["actions"]],
            rewards=columns.get(fields["rewards"]),
            instruction=_texts(small.get("instructions", small.get("instruction")), path),
            state_names=tuple(_texts(small.get("state_names", np.array([], str)), path)),
            action_names=tuple(_texts(small.get("action_names", np.array([], str)), path)),
            choose=lambda numbers, images: choose_keys(numbers, images, options, path),
            **{name: columns[name] for name in FLAGS if name in columns},
        )
    if others := sorted(names - known):
        table.notes.append(f"Not read: {', '.join(others)}.")
    bounds = bounds_of(small.get("action_low"), small.get("action_high"), width(table.actions), str(path))
    rate = small.get("control_rate")
    chosen = options.ranges.choose(range(len(table.ends)), path, table.notes)
    return ForeignDataset(
        keys=table.keys,
        episodes=_episodes(path, table, fields, following, set(chosen)),
        num_episodes=len(chosen),
        num_steps=int(np.diff(table.ends, prepend=0)[chosen].sum()),
        fps=None if rate is None else float(rate),
        action_low=np.array(bounds["action_low"], np.float32) if bounds else None,
        action_high=np.array(bounds["action_high"], np.float32) if bounds else None,
        state_names=table.state_names,
        action_names=table.action_names,
        notes=table.notes,
    )


def _episodes(
    path: Path, table: ArrayTable, fields: Mapping[str, str], following: Mapping[str, str], chosen: set[int]
) -> Iterator[Episode]:
    """Yield the chosen episodes, from columns that are opened anew at their first rows."""
    next_names = {name: following[name] for name in table.following}
    rewards = [] if table.rewards is None else [fields["rewards"]]
    with open_columns(path, [*table.observations, *next_names.values(), fields["actions"], *rewards]) as columns:
        opened = replace(
            table,
            observations={name: columns[name] for name in table.observations},
            following={name: columns[other] for name, other in next_names.items()},
            actions=columns[fields["actions"]],
            rewards=columns[rewards[0]] if rewards else None,
        )
        yield from opened.episodes(chosen)


def _next_name(name: str) -> str:
    """Return the key of the next observations of an observation's key."""
    return f"next_{name}" if name.startswith("observations") else f"next_observations/{name}"


def _texts(values: np.ndarray | None, path: Path) -> str | list[str]:
    """Return one text, or a list of texts, from an array of text."""
    if values is None:
        return ""
    check(values.dtype.kind in "US", path, "text (a numpy array of str)", f"dtype {values.dtype}", "Convert it.")
    texts = [text.decode() if isinstance(text, bytes) else str(text) for text in values.ravel().tolist()]
    return texts if values.ndim else texts[0]
