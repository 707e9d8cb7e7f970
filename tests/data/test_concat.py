"""Several folders read as one: all episodes in order, every transition equally likely."""

import json
from pathlib import Path

import numpy as np
import pytest
from runs import write_dataset

from pac.data.concat import ConcatDataset, open_dataset, open_part
from pac.data.mixture import Mixture, count, parse_mixture
from pac.data.sampler import Sampler
from pac.data.statistics import pool_statistics
from pac.data.store import Dataset
from pac.data.windows import locate
from pac.policy import PolicyMetadata


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Datasets of unequal sizes with images and goals. Two of three share an instruction."""
    return [
        write_dataset(
            tmp_path / f"part{i}", episodes=3 + 4 * i, cameras=1, goals=True, seed=i, instruction=("a", "b", "a")[i]
        )
        for i in range(3)
    ]


def test_a_part_without_names_of_dimensions_fits(folders: list[Path]) -> None:
    """Rounds of an older version have none."""
    spec = json.loads((folders[1] / "spec.json").read_text())
    names = [f"joint{i}" for i in range(spec["state_dim"])]
    (folders[1] / "spec.json").write_text(json.dumps(spec | {"state_names": names}))
    (folders[2] / "spec.json").write_text(json.dumps(spec | {"state_names": names[::-1]}))
    assert len(ConcatDataset(folders[:2])) == 3 + 7
    with pytest.raises(ValueError, match="data of the same kind"):
        ConcatDataset(folders[1:])


def test_episodes_are_those_of_the_parts_in_order(folders: list[Path]) -> None:
    joined, parts = ConcatDataset(folders), [Dataset(folder) for folder in folders]
    expected = [episode for part in parts for episode in part]
    assert len(joined) == len(expected) == 3 + 7 + 11
    assert joined.num_steps == sum(part.num_steps for part in parts)
    joined.check_index()
    for found, source in zip(joined, expected, strict=True):
        np.testing.assert_array_equal(found.action, source.action)
        np.testing.assert_array_equal(found.reward, source.reward)
        for name in source.observation:
            np.testing.assert_array_equal(found.observation[name], source.observation[name])
        for name in source.goal_images:
            np.testing.assert_array_equal(found.goal_images[name], source.goal_images[name])
        assert (found.instruction, found.source, found.success) == (source.instruction, source.source, source.success)


def test_statistics_are_those_of_all_rows(folders: list[Path]) -> None:
    joined = ConcatDataset(folders)
    states = np.concatenate([episode.observation["observation.state"] for episode in joined])
    np.testing.assert_allclose(joined.proprio_centre, states.mean(0), rtol=1e-5)
    np.testing.assert_allclose(joined.proprio_scale, states.std(0), rtol=1e-4)
    found = joined.statistics("observation.state")
    np.testing.assert_allclose(found["min"], states.min(0), rtol=1e-6)
    assert found["count"] == len(states)
    nothing = {"count": 0, "mean": [], "variance": [], "min": [], "max": []}
    assert pool_statistics([nothing, found])["mean"] == found["mean"]


def test_every_transition_is_equally_likely_in_several_folders(folders: list[Path]) -> None:
    """Two transitions a window: each episode is drawn in proportion to its length plus one."""
    table = mixture(folders, window=3)
    sampler = Sampler(table, seed=0)
    (source,) = sampler.sources
    drawn = np.concatenate([locate([(source, slice(None))], sampler.draw(step).window).episode for step in range(400)])
    likely = source.dataset.index["length"] + 1.0
    likely *= len(drawn) / likely.sum()
    found = np.bincount(drawn, minlength=len(likely))
    assert ((found - likely) ** 2 / likely).sum() < 50  # chi-squared with 20 degrees of freedom: 45 at 1 in 1000
    assert count(table.datasets[0], 3).episodes == len(likely)


def mixture(folders: list[Path], window: int = 2, **given: object) -> Mixture:
    first, *more = map(str, folders)
    dataset = {"name": "all", "path": first, "more_paths": more} | given
    return parse_mixture(
        {"batch_size": 64, "window": window, "groups": [{"name": "g", "weight": 1, "datasets": [dataset]}]}
    )


def test_a_pattern_matches_folders_in_order(folders: list[Path]) -> None:
    named, matches = mixture([folders[0].parent / "*"]).datasets[0], sorted(map(str, folders[0].parent.iterdir()))
    assert [named.path, *named.more_paths] == matches
    assert len(matches) > 1
    first = mixture([folders[0], folders[0].parent / "*"]).datasets[0]
    assert [first.path, *first.more_paths] == [str(folders[0]), *matches]
    odd = folders[0].rename(folders[0].with_name("a[1]"))  # a folder of that very name is no pattern
    assert mixture([odd]).datasets[0].path == str(odd)
    with pytest.raises(
        ValueError, match=r"rounds/\*/nothing: expected folders for dataset 'all', found none that match"
    ):
        mixture([odd.parent / "rounds/*/nothing"])


def test_given_statistics_reach_the_batch_and_the_policy(folders: list[Path]) -> None:
    given = {"proprio_centre": [1, 2, 3], "proprio_scale": [4.0, 5.0, 6.0]}
    sampler = Sampler(mixture(folders, **given), seed=0)
    batch = sampler.batch(0)
    np.testing.assert_array_equal(batch.observation.proprio_centre[0, 0], [1, 2, 3])
    np.testing.assert_array_equal(batch.observation.proprio_scale[0, 0], [4, 5, 6])
    embodiment = PolicyMetadata.of(sampler).embodiments[0]
    assert (embodiment.proprio_centre, embodiment.proprio_scale) == ((1, 2, 3), (4, 5, 6))
    assert embodiment.instructions == ("a", "b")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"proprio_centre": [1.0, 2.0, 3.0]}, "proprio_centre and proprio_scale together"),
        ({"proprio_centre": [0.0] * 3, "proprio_scale": [1.0, 0.0, 1.0]}, "positive scales"),
        ({"proprio_centre": [0.0] * 2, "proprio_scale": [1.0] * 2}, "of 3 numbers, as its states have, found 2"),
    ],
)
def test_wrong_statistics_are_refused(folders: list[Path], given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(mixture(folders, **given), seed=0)


def test_other_data_is_refused(folders: list[Path], tmp_path: Path) -> None:
    other = write_dataset(tmp_path / "other", dims=5)
    with pytest.raises(ValueError, match="data of the same kind"):
        open_dataset(folders[0], [other])


def test_a_folder_is_opened_again_once_it_has_grown(folders: list[Path]) -> None:
    assert open_part(folders[0]) is open_part(folders[0])
    before = len(open_part(folders[0]))
    write_dataset(folders[0], episodes=2, cameras=1, goals=True, instruction="a")
    assert len(open_part(folders[0])) == before + 2
