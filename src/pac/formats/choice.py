"""Choice of episodes: those of --episodes, and those whose parts are all there."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from pac.formats.checks import check


class EpisodeRanges:
    """Indices of episodes, written as "0:80", "0:80,100:120", "7" or "80:". None means all."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self._ranges = [_parse(part.strip()) for part in text.split(",")] if text is not None else [(0, None)]

    def __contains__(self, index: object) -> bool:
        if not isinstance(index, int):
            return False
        return any(start <= index and (stop is None or index < stop) for start, stop in self._ranges)

    @property
    def stop(self) -> int | None:
        """The index after the last chosen one, or None if there is no such limit."""
        stops = [stop for _, stop in self._ranges]
        return None if None in stops else max(stop for stop in stops if stop is not None)

    def choose(self, indices: Iterable[int], where: object, notes: list[str] | None = None) -> list[int]:
        """Return the chosen ones of `indices`. Raise if a range reaches beyond them."""
        indices = list(indices)
        self.check_within(max(indices, default=-1) + 1, where)
        chosen = [index for index in indices if index in self]
        expected = f"--episodes that are in {describe(indices)}"
        check(chosen or not indices, where, expected, self.text, "Correct --episodes.")
        if notes is not None and len(chosen) < len(indices):
            notes.append(f"{len(chosen)} of {len(indices)} episodes, as --episodes says.")
        return chosen

    def check_within(self, count: int, where: object) -> None:
        """Raise if a range reaches beyond the first `count` episodes."""
        inside = all(start < count and (stop or 0) <= count for start, stop in self._ranges)
        check(inside or self.text is None, where, f"--episodes within 0:{count}", self.text, "Correct --episodes.")


def describe(indices: Sequence[int]) -> str:
    """Return indices as ranges: "10:22,30" for 10 to 21 and 30."""
    spans: list[list[int]] = []
    for index in sorted(indices):
        if spans and spans[-1][1] == index:
            spans[-1][1] += 1
        else:
            spans.append([index, index + 1])
    texts = [str(start) if stop == start + 1 else f"{start}:{stop}" for start, stop in spans]
    return ",".join(texts[:8]) + (",..." if len(texts) > 8 else "") if texts else "none"


def leave_out_missing(
    where: object,
    indices: Collection[int],
    missing: Mapping[str, Mapping[int, object]],
    cameras: Mapping[str, str],
    choice: str,
    notes: list[str],
) -> tuple[list[int], set[str]]:
    """Return the episodes to read, and the cameras to leave out, where files of some episodes are missing.

    `missing` has for each part the episodes that lack it, and the absent file. `cameras` maps the parts that are
    cameras to their names. `choice` is the option --missing.
    """
    missing = {part: files for part, files in missing.items() if files}
    if not missing:
        return sorted(indices), set()
    lacking = set().union(*missing.values())
    whole = [index for index in sorted(indices) if index not in lacking]
    droppable = missing.keys() <= cameras.keys()
    names = ", ".join(cameras.get(part, part) for part in missing)
    found = "; ".join(
        f"{cameras.get(part, part)} missing in {len(files)}, the first {files[min(files)]}"
        for part, files in missing.items()
    )
    expected = f"the files of all {len(indices)} episodes"
    ways = ["Download them"]
    if whole:
        ways.append(f"choose --missing skip-episodes, which reads {len(whole)} episodes ({describe(whole)})")
    if droppable:
        ways.append(f"choose --missing skip-features, which leaves out {names}")
    fix = ", or ".join(ways) + "."
    check(choice != "refuse", where, expected, found, fix)
    if choice == "skip-features":
        check(droppable, where, f"{expected}, but for cameras", found, fix)
        notes.append(f"Left out, because files are missing in {len(lacking)} episodes: {names}.")
        return sorted(indices), set(missing)
    check(whole, where, f"an episode with all its files ({names})", f"none among {len(indices)}", fix)
    notes.append(f"{len(lacking)} of {len(indices)} episodes left out, because files are missing: {names}.")
    return whole, set()


def _parse(text: str) -> tuple[int, int | None]:
    """Return the first index of a range, and the one after its last."""
    start, colon, stop = text.partition(":")
    good = (start.strip().isdecimal() or (colon and not start.strip())) and (stop.strip() or "0").isdecimal()
    fix = "Write for example --episodes 0:80,100:120."
    check(good, "--episodes", "indices such as 0:80, 0:80,100:120 or 7", repr(text), fix)
    first = int(start or 0)
    if not colon:
        return first, first + 1
    check(not stop.strip() or int(stop) > first, "--episodes", "ranges that hold an episode", repr(text), fix)
    return first, int(stop) if stop.strip() else None
