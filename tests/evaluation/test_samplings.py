"""Which way to act is better, in words."""

from made import outcomes, returns

from pac.evaluation import EpisodeRecord, compare
from pac.evaluation.samplings import sampling_notes, sampling_pairs, without

SAMPLED, LIKELY = "ours (sample)", "ours (mode)"
ACTORS = {
    name: {"checkpoint": "runs/a", "fingerprint": "x", "best_of": 1, "sampling": way}
    for name, way in ((SAMPLED, "sample"), (LIKELY, "mode"))
}


def note(records: list[EpisodeRecord], **given: bool) -> str:
    (found,) = sampling_notes(sampling_pairs(ACTORS), compare(records), **given)
    return found


def test_the_better_way_is_named_first_whatever_the_order() -> None:
    records = outcomes("metaworld/push", 40, 100, SAMPLED) + outcomes("metaworld/push", 80, 100, LIKELY)
    assert note(records).startswith(
        "ours: most likely actions are better than sampled actions, by 40.0 points of success"
    )
    assert note(records).endswith("] over 100 pairs.")
    other = outcomes("metaworld/push", 80, 100, SAMPLED) + outcomes("metaworld/push", 40, 100, LIKELY)
    assert note(other).startswith(
        "ours: sampled actions are better than most likely actions, by 40.0 points of success ["
    )


def test_a_difference_that_may_be_chance_is_called_that() -> None:
    records = outcomes("metaworld/push", 10, 20, SAMPLED, seed=1) + outcomes("metaworld/push", 11, 20, LIKELY, seed=2)
    text = note(records)
    assert "cannot be told apart with 20 pairs" in text
    assert "The difference is 5.0 points of success [-" in text


def test_where_success_does_not_differ_the_return_decides_unless_episodes_end_at_success() -> None:
    records = []
    for actor, total in ((SAMPLED, 1.0), (LIKELY, 5.0)):
        entries = outcomes("metaworld/push", 20, 20, actor)
        records += [type(e)(**{**vars(e), "total": total + e.index / 100 * total}) for e in entries]
    assert "most likely actions are better than sampled actions, by 4.4 of return [" in note(records)
    assert "cannot be told apart" in note(records, stop_at_success=True)


def test_only_actors_that_differ_in_sampling_alone_are_pairs() -> None:
    assert len(sampling_pairs(ACTORS)) == 1
    assert sampling_pairs(ACTORS | {LIKELY: ACTORS[LIKELY] | {"best_of": 16}}) == []
    assert sampling_pairs(ACTORS | {LIKELY: ACTORS[LIKELY] | {"fingerprint": "y"}}) == []
    assert sampling_pairs({"random": {"behaviour": "random"}, "still": {"behaviour": "random+hesitate"}}) == []
    assert sampling_pairs({"ours": {"checkpoint": "a", "sampling": "sample"}} | ACTORS)[0].name == "ours"


def test_other_differences_stay() -> None:
    records = [entry for actor in (*ACTORS, "random") for entry in returns("control/a", [1.0, 2.0], actor)]
    kept = without(compare(records), sampling_pairs(ACTORS))
    assert {(d.first, d.second) for d in kept} == {(SAMPLED, "random"), (LIKELY, "random")}
