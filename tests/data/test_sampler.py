"""Batches have the right frequencies and time alignment, and are the same after a resume and on any ranks."""

import dataclasses
import itertools
import pickle
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories import trim
from torch.utils._python_dispatch import TorchDispatchMode

from pac.data.gpu import pack, unpack
from pac.data.images import BufferPool, resize_images
from pac.data.mixture import Mixture, parse_mixture, plan
from pac.data.sampler import Sampler
from pac.data.store import Dataset
from pac.types import Batch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def mixture(*paths: Path, batch_size: int = 64, window: int = 5, weight: float = 1, **settings: Any) -> Mixture:
    datasets = [{"name": path.name, "path": str(path)} for path in paths]
    group = {"name": "all", "weight": weight, "datasets": datasets} | settings
    return parse_mixture({"groups": [group], "batch_size": batch_size, "window": window})


def discounted(plain: Mixture, **discounts: float) -> Mixture:
    """Return the mixture with discounts of datasets by name."""
    (group,) = plain.groups
    datasets = tuple(dataclasses.replace(d, discount=discounts.get(d.name)) for d in group.datasets)
    return dataclasses.replace(plain, groups=(dataclasses.replace(group, datasets=datasets),))


def assert_equal(first: Batch, second: Batch) -> None:
    assert all(map(torch.equal, first.tensors(), second.tensors()))


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Return how many standard deviations the statistic lies above its mean."""
    statistic, freedom = float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)


# --- what is drawn ---


@pytest.fixture
def three_datasets(make_episode: Any, make_dataset: Any) -> Mixture:
    paths = [
        make_dataset(name, [make_episode(i, 3 + i) for i in range(n)]) for name, n in (("a", 5), ("b", 1), ("c", 2))
    ]
    unused = {"name": "planned", "counts": {"windows": 3}}
    a, b, c = ({"name": path.name, "path": str(path)} for path in paths)
    groups = [
        {"name": "first", "weight": 3, "datasets": [a, b]},
        {"name": "off", "weight": 0, "datasets": [unused]},  # weight 0: not even opened
        {"name": "second", "weight": 0.5, "datasets": [c]},
    ]
    return parse_mixture({"groups": groups, "batch_size": 512})


def test_frequencies_match_p_eff_on_any_number_of_ranks(three_datasets: Mixture) -> None:
    steps, totals = 400, []
    p_eff = {name: float(p) for name, p in three_datasets.probabilities.items() if p}
    assert p_eff == pytest.approx({"a": 3 / 7, "b": 3 / 7, "c": 1 / 7})
    for world_size in (1, 2, 4):
        merged = np.zeros(3)
        for rank in range(world_size):
            sampler = Sampler(three_datasets, seed=3, rank=rank, world_size=world_size)
            counts = sum(np.bincount(sampler.draw(step).dataset, minlength=3) for step in range(steps))
            expected = np.array(list(p_eff.values())) * steps * 512 / world_size
            assert chi_square(counts, expected) < 4, (world_size, rank)
            merged += counts
        totals.append(merged.tolist())
    assert totals[0] == totals[1] == totals[2]


def test_ranks_share_the_windows_of_a_step(three_datasets: Mixture) -> None:
    def windows(rank: int, world_size: int) -> list[tuple[int, int, float]]:
        draws = Sampler(three_datasets, seed=1, rank=rank, world_size=world_size).draw(9)
        return list(zip(draws.dataset.tolist(), draws.window.tolist(), draws.goal.tolist(), strict=True))

    whole = Counter(windows(0, 1))
    assert len(whole) == 512  # `goal` tells apart even two draws of one window
    for world_size in (2, 4):
        assert sum((Counter(windows(rank, world_size)) for rank in range(world_size)), Counter()) == whole


def test_every_transition_is_equally_likely(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(i, length) for i, length in enumerate((1, 2, 4, 9, 20))])
    sampler = Sampler(mixture(path, batch_size=512), seed=0)
    counts: Counter[tuple[int, int]] = Counter()
    for step in range(100):
        batch = sampler.batch(step)
        seen = batch.observation.proprio[:, :-1][batch.mask][:, :2].long()
        counts.update(map(tuple, seen.tolist()))
    assert len(counts) == 36
    found = np.array(list(counts.values()))
    # Transitions come in windows of up to 4, which inflates the variance of the counts by at most 4.
    assert chi_square(found, np.full(36, found.mean())) < 4 * 4


def test_windows_are_uniform_within_a_dataset(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(i, length) for i, length in enumerate((1, 2, 9))])
    sampler = Sampler(mixture(path, batch_size=512), seed=0)
    counts = sum(np.bincount(sampler.draw(step).window, minlength=21) for step in range(100))
    assert len(counts) == sampler.sources[0].num_windows == 12 + 3 * 3
    assert chi_square(counts, np.full(21, 512 * 100 / 21)) < 4


def test_a_step_is_a_pure_function_of_its_number(three_datasets: Mixture) -> None:
    sampler = Sampler(three_datasets, seed=5)
    run = [sampler.batch(step) for step in range(6)]
    again = Sampler(three_datasets, seed=5)
    for step in (4, 0, 5, 4):
        assert_equal(again.batch(step), run[step])
    for found, expected in zip(again.batches(3), run[3:], strict=False):
        assert_equal(found, expected)
    assert not torch.equal(run[0].reward, run[1].reward)
    assert not torch.equal(Sampler(three_datasets, seed=6).batch(0).reward, run[0].reward)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # torch's loader forks
@pytest.mark.parametrize("threads", [False, True])
def test_workers_give_the_same_batches(threads: bool, make_episode: Any, make_dataset: Any) -> None:
    first = make_dataset("first", [make_episode(i, 9, cameras=["a"], instruction="go") for i in range(3)])
    second = make_dataset("second", [make_episode(9, 4)])
    sampler = Sampler(mixture(first, second), seed=5)
    stream = sampler.batches(7, num_workers=2, threads=threads)
    kept = list(itertools.islice(stream, 12))
    for step, batch in enumerate(kept, start=7):
        assert_equal(batch, sampler.batch(step))


def test_memory_of_a_live_batch_is_not_used_again(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(i, 20, cameras=["a", "b"]) for i in range(3)])
    sampler = Sampler(mixture(path), seed=0)
    kept = [sampler.batch(step).observation.images[3:, 1] for step in range(4)]  # views, too, hold their memory
    for step in range(20):
        sampler.batch(step)
    for step, images in enumerate(kept):
        assert torch.equal(images, Sampler(mixture(path), seed=0).batch(step).observation.images[3:, 1])
    assert len(sampler.buffers._arrays) < 12


@pytest.mark.parametrize("state", [True, False])
def test_gathering_from_gpu_data_gives_the_same_batches(state: bool, make_episode: Any, make_dataset: Any) -> None:
    """The code for GPUs runs on the CPU: datasets of other widths, one without a state, and hindsight rewards."""
    wide = [make_episode(i, 9, cameras=["a"], state_dim=3 if state else 0) for i in range(3)]
    paths = [make_dataset("wide", wide), make_dataset("blind", [make_episode(6, 5, cameras=["a"], state_dim=0)])]
    paths += [make_dataset("narrow", [make_episode(7, 4, state_dim=1, action_dim=1)])] if state else []
    table = mixture(*paths, goals="hindsight", goal_cameras=["a"]) if not state else mixture(*paths)
    sampler, joined = Sampler(table, seed=0), Sampler(table, seed=0, device="cpu")
    for step in range(6):
        found, expected = joined.batch(step), sampler.batch(step)
        assert_equal(found, expected)
        assert [x.stride() for x in found.tensors()] == [x.stride() for x in expected.tensors()]


def test_replaced_slots_and_scales_reach_batches_from_gpu_data(make_episode: Any, make_dataset: Any) -> None:
    """Camera slots of a model, and scales of rewards."""
    paths = [make_dataset(name, [make_episode(i, 9, cameras=["a", "b"])]) for i, name in enumerate("xy")]
    plain, gathered = Sampler(mixture(*paths), seed=0), Sampler(mixture(*paths), seed=0, device="cpu")
    changes = {"camera_slots": {"b": 0, "c": 1, "a": 2}, "value_scales": {"x": 2.0, "y": 3.0}}
    before, expected = plain.batch(0), plain.replace(**changes).batch(0)
    for sampler in (gathered.replace(**changes), plain.replace(**changes, device="cpu")):
        assert_equal(sampler.batch(0), expected)
    assert_equal(gathered.replace(**changes).replace(device=None).batch(0), expected)
    assert expected.observation.camera_slots[0, 0].tolist() == [2, 0]
    numbers = before.observation.proprio[:, :1, 0]  # of the episode: 0 in x, 1 in y
    assert torch.equal(expected.reward, before.reward * (2 + numbers))
    assert_equal(plain.batch(0), before)  # the sampler itself did not change


def test_replaced_slots_and_scales_reach_worker_processes(make_episode: Any, make_dataset: Any) -> None:
    """A process that is not forked gets the sampler as bytes."""
    path = make_dataset("d", [make_episode(0, 9, cameras=["a", "b"])])
    sampler = Sampler(mixture(path), seed=0)
    sampler = sampler.replace(camera_slots={"b": 0, "c": 1, "a": 2}, value_scales={"d": 2.0})
    other = pickle.loads(pickle.dumps(sampler))
    assert_equal(other.batch(0), sampler.batch(0))
    assert (other.camera_slots, other.goal_slots) == (sampler.camera_slots, sampler.goal_slots)


def test_launches_do_not_grow_with_the_number_of_datasets(make_episode: Any, make_dataset: Any) -> None:
    """Each launch takes a few microseconds of the GPU and of the host."""
    paths = [make_dataset(f"d{i}", [make_episode(i, 9, state_dim=i + 1)]) for i in range(6)]
    launches = []
    for used in (paths[:2], paths):
        sampler = Sampler(mixture(*used), seed=0, device="cpu")
        with CountLaunches() as counter:
            sampler.batch(0)
        launches.append(counter.count)
    assert launches[0] == launches[1] <= 20  # and three that normalise actions, which numpy does here


class CountLaunches(TorchDispatchMode):
    """Count of operations that compute. Views do not count."""

    count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        looks = operation.is_view or operation.name().startswith(
            ("aten::empty", "aten::new_empty", "aten::lift", "aten::detach")
        )
        self.count += not looks
        return operation(*args, **(kwargs or {}))


def test_arrays_are_packed_into_one_transfer() -> None:
    numbers = np.arange(15).reshape(3, 5)
    arrays = [
        numbers % 2 == 0,
        numbers[:, 1:4],
        numbers[:, :0] > 0,
        numbers.astype(np.float32),
        numbers[0] > 2,
        numbers,
    ]
    packed = pack(arrays)
    assert len(packed) <= sum(array.nbytes for array in arrays) + 7 * len(arrays)
    for array, found in zip(arrays, unpack(packed, arrays), strict=True):
        assert found.untyped_storage().data_ptr() == packed.data_ptr()
        assert found.is_contiguous()
        np.testing.assert_array_equal(found.numpy(), array, strict=True)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_data_and_pinned_workers_give_the_same_batches(make_episode: Any, make_dataset: Any) -> None:
    goal = {"a": np.full((4, 5, 3), 9, np.uint8)}
    wide = [make_episode(i, 9, cameras=["a", "b"], goal_images=goal, instruction="go") for i in range(3)]
    paths = make_dataset("wide", wide), make_dataset("narrow", [make_episode(7, 4, state_dim=1, action_dim=1)])
    table = discounted(mixture(*paths), wide=0.9)
    sampler, resident = Sampler(table, seed=0), Sampler(table, seed=0, device="cuda")
    streams = [sampler.batches(num_workers=2, threads=threads) for threads in (False, True)]
    for step, pinned in zip(range(3), zip(*streams, strict=True), strict=False):
        assert resident.batch(step).action.is_cuda
        assert_equal(resident.batch(step).to("cpu"), sampler.batch(step))
        for batch in pinned:
            assert batch.action.is_pinned()
            assert_equal(batch, sampler.batch(step))


def test_batches_have_the_discount_of_each_dataset(make_episode: Any, make_dataset: Any) -> None:
    """Datasets without a discount have the sampler's. Nothing else changes, in every way to make batches."""
    paths = [make_dataset(name, [make_episode(i, 9, terminated=True)]) for i, name in enumerate("abc")]
    plain, table = mixture(*paths), discounted(mixture(*paths), a=0.9, b=0.0)
    sampler = Sampler(table, seed=0, discount=0.5)
    batch, before = sampler.batch(0), Sampler(plain, seed=0, discount=0.5).batch(0)
    assert (before.gamma == 0.5).all()
    expected = torch.tensor([0.9, 0.0, 0.5])[batch.observation.proprio[:, 0, 0].long()]
    assert len(expected.unique()) == 3
    assert torch.equal(batch.gamma, expected)
    assert_equal(dataclasses.replace(batch, gamma=before.gamma), before)
    for other in (pickle.loads(pickle.dumps(sampler)).batch(0), next(sampler.batches(num_workers=2, threads=True))):
        assert_equal(other, batch)
    half = [Sampler(table, seed=0, discount=0.5, rank=r, world_size=2).batch(0).gamma for r in range(2)]
    assert torch.equal(torch.cat(half).sort().values, expected.sort().values)


def test_value_bounds_follow_the_discount_of_each_dataset(make_episode: Any, make_dataset: Any) -> None:
    """Rewards from 0 to 4 for ever, or a reward of 4 only at a termination."""
    dense, bare = make_episode(0, 5), make_episode(0, 5, terminated=True)
    bare = dataclasses.replace(bare, reward=np.array([0, 0, 0, 0, 4], np.float32))
    paths = make_dataset("a", [dense]), make_dataset("b", [dense]), make_dataset("once", [bare])
    sampler = Sampler(discounted(mixture(*paths), a=0.75, once=0.75), seed=0, discount=0.5)
    assert [source.value_bounds() for source in sampler.sources] == [(0.0, 16.0), (0.0, 8.0), (0.0, 4.0)]


def test_batches_have_the_return_to_go_after_each_window(make_episode: Any, make_dataset: Any) -> None:
    """For windows anywhere in an episode, in every way to make batches. By default there is none."""
    kinds = [(length, ends) for length in (1, 2, 4, 11) for ends in ENDS]
    path = make_dataset("d", [make_episode(i, length, **ends) for i, (length, ends) in enumerate(kinds)])
    table = discounted(mixture(path, batch_size=256, window=4, reward_scale=3.0), d=0.5)
    sampler = Sampler(table, seed=0, discount=0.9, return_to_go=True)  # the dataset has its own
    seen = set()
    for step in range(8):
        batch = sampler.batch(step)
        for i in range(256):
            number, first = (int(x) for x in batch.observation.proprio[i, 0, :2])
            (length, ends), end = kinds[number], first + int(batch.mask[i].sum())
            if not batch.mask[i].any() or (end == length - 1 and not (ends["last_known"] or ends["terminated"])):
                continue  # the last observation is unknown, and so is all that follows
            earned = sum(0.5 ** (now - end) * 3 * (now + 1000 * number) for now in range(end, length))
            assert batch.return_to_go[i] == pytest.approx(earned, rel=1e-5)
            assert batch.return_to_go_weight[i] == (1 if ends["terminated"] else 1 - 0.5 ** (length - end))
            seen.add((number, end))
    assert len(seen) > 50
    copied = pickle.loads(pickle.dumps(sampler))
    assert_equal(copied.batch(3), sampler.batch(3))
    assert_equal(sampler.replace(device="cpu").batch(3), copied.batch(3))  # as on a GPU
    without = Sampler(table, seed=0).batch(0)
    assert not without.return_to_go.any()
    assert not without.return_to_go_weight.any()


def test_a_pickled_sampler_is_small_and_gives_the_same_batches(three_datasets: Mixture) -> None:
    sampler = Sampler(three_datasets, seed=5, rank=1, world_size=2)
    copied = pickle.loads(pickle.dumps(sampler))  # what "spawn" does
    assert_equal(copied.batch(3), sampler.batch(3))
    assert len(pickle.dumps(sampler)) < 10_000  # its settings and small tables, not its data


# --- time ---


ENDS = [
    {"terminated": terminated, "truncated": truncated, "last_known": last_known}
    for terminated, truncated, last_known in itertools.product((False, True), repeat=3)
]


@pytest.mark.parametrize("window", [2, 3, 5])
def test_windows_never_cross_an_episode_end(window: int, make_episode: Any, make_dataset: Any) -> None:
    kinds = [(length, ends) for length in (1, 2, 4, 5, 11) for ends in ENDS]
    path = make_dataset("d", [make_episode(i, length, **ends) for i, (length, ends) in enumerate(kinds)])
    sampler = Sampler(mixture(path, batch_size=512, window=window), seed=0)
    seen = set()
    for step in range(20):
        batch = sampler.batch(step)
        for i in range(512):
            state, mask = batch.observation.proprio[i], batch.mask[i]
            number, first = int(state[0, 0]), int(state[0, 1])
            length, ends = kinds[number]
            assert (state[:, 0] == number).all(), "crossed an end"
            for t in range(window - 1):
                if not mask[t]:
                    continue
                now = first + t
                assert now < length
                assert state[t, 1] == now
                assert batch.action[i, t, 0] == pytest.approx(now / 100)
                assert batch.reward[i, t] == now + 1000 * number
                is_last = now == length - 1
                assert batch.discount[i, t] == (0 if is_last and ends["terminated"] else 1)
                assert state[t + 1, 1] == now + 1 or (is_last and not ends["last_known"] and ends["terminated"])
                seen.add((number, now))
    # Everything is seen but the last step of an episode that goes on into what nobody recorded.
    lost = {
        (i, length - 1) for i, (length, ends) in enumerate(kinds) if not ends["last_known"] and not ends["terminated"]
    }
    assert seen == {(i, t) for i, (length, _) in enumerate(kinds) for t in range(length)} - lost


# --- robots of several kinds ---


def test_different_robots_mix_by_union(make_episode: Any, make_dataset: Any) -> None:
    wide = make_dataset(
        "wide", [make_episode(1, 6, state_dim=7, action_dim=4, cameras=["front", "wrist"], instruction="dog.run")]
    )
    narrow = make_dataset("narrow", [make_episode(2, 6, cameras=["wrist"], instruction="go")])
    blind = make_dataset("blind", [make_episode(3, 6, state_dim=2, action_dim=1)])
    sampler = Sampler(mixture(wide, narrow, blind), seed=0)
    assert sampler.camera_slots == {"front": 0, "wrist": 1}
    batch = sampler.batch(0)
    observation = batch.observation
    assert observation.images.shape == (64, 5, 2, 4, 5, 3)
    assert trim(observation).images.shape == observation.images.shape  # made no wider than needed
    assert trim(observation).text.shape == observation.text.shape
    robots = observation.proprio[:, 0, 0].long()
    assert set(robots.tolist()) == {1, 2, 3}
    for i, robot in enumerate(robots.tolist()):
        state_dim, action_dim, cameras, text = {1: (7, 4, [0, 1], "dog.run"), 2: (3, 2, [1], "go"), 3: (2, 1, [], "")}[
            robot
        ]
        assert (observation.proprio_mask[i].sum(-1) == state_dim).all()
        assert (batch.action_mask[i].sum(-1) == action_dim).all()
        assert not observation.proprio[i, :, state_dim:].any()
        assert not batch.action[i, :, action_dim:].any()
        for t in range(5):
            mask = observation.camera_mask[i, t]
            assert observation.camera_slots[i, t][mask].tolist() == cameras
            images = observation.images[i, t][mask]
            assert (images[..., 0] == robot).all()
            assert (images[..., 1] == observation.proprio[i, t, 1]).all()
            assert sampler.tokenizer.decode(observation.text[i, t].numpy(), observation.text_mask[i, t].numpy()) == text
    source = Dataset(wide)
    np.testing.assert_array_equal(observation.proprio_scale[robots == 1][0, 0], source.proprio_scale)
    np.testing.assert_array_equal(observation.proprio_centre[robots == 1][0, 0], source.proprio_centre)


def test_images_of_other_sizes_are_resized(make_episode: Any, make_dataset: Any) -> None:
    small = make_dataset("small", [make_episode(10, 6, cameras=["a"])])
    large = make_dataset("large", [make_episode(20, 6, cameras=["a"], size=(16, 12))])
    settings = mixture(small, large)
    images = Sampler(dataclasses.replace(settings, image_size=(8, 6)), seed=0).batch(0).observation.images
    assert images.shape[2:] == (1, 8, 6, 3)
    assert set(images[..., 0].unique().tolist()) == {10, 20}
    gradient = torch.arange(0, 160, 10, dtype=torch.uint8)[None, :, None, None].expand(1, 16, 12, 3)
    assert resize_images(gradient, (4, 3))[0, :, 0, 0].tolist() == pytest.approx([15, 55, 95, 135], abs=6)


def test_actions_are_normalised_on_reading(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(0, 6)], action_low=[0.0, -1.0], action_high=[0.5, 3.0])
    batch = Sampler(mixture(path), seed=0).batch(0)
    raw = batch.observation.proprio[:, :-1, 1] / 100
    torch.testing.assert_close(batch.action[..., 0][batch.mask], (raw * 4 - 1)[batch.mask])
    torch.testing.assert_close(batch.action[..., 1][batch.mask], ((raw - 1) / 2)[batch.mask])


# --- settings of a dataset ---


def test_settings_reach_the_batch(make_episode: Any, make_dataset: Any) -> None:
    extra = {"lift": np.full(6, 4, np.float32)}
    path = make_dataset(
        "d",
        [
            make_episode(i, 6, cameras=["a", "b"], success=i == 2, instruction="old", extra_rewards=extra)
            for i in range(4)
        ],
    )
    settings = {
        "imitation_weight": 0.25,
        "critic_weight": 7.0,
        "reward": "lift",
        "reward_scale": 0.5,
        "instruction": "new",
        "success_only": True,
        "cameras": ["b"],
    }
    sampler = Sampler(mixture(path, **settings), seed=0)
    batch = sampler.batch(0)
    assert (batch.imitation_weight == 0.25).all()
    assert (batch.critic_weight == 7).all()
    assert (batch.reward[batch.mask] == 2).all()
    assert (batch.observation.proprio[..., 0] == 2).all()
    assert (batch.observation.images[..., 2] == 1).all()
    assert (
        sampler.tokenizer.decode(batch.observation.text[0, 0].numpy(), batch.observation.text_mask[0, 0].numpy())
        == "new"
    )
    (row,) = plan(sampler.mixture).datasets
    assert (row.counts.episodes, row.counts.windows, row.counts.images, row.counts.success) == (1, 2, 1, 1.0)


def test_given_goals_and_keep_probabilities(make_episode: Any, make_dataset: Any) -> None:
    goals = [{"a": np.full((4, 5, 3), 10 + i, np.uint8)} if i else {} for i in range(3)]
    episodes = [make_episode(i, 5, goal_images=goals[i], instruction="walk") for i in (1, 0, 2)]
    path = make_dataset("d", episodes)
    batch = Sampler(mixture(path, batch_size=512, keep_goal=0.25, keep_text=0.75), seed=0).batch(0)
    observation, number = batch.observation, batch.observation.proprio[:, 0, 0]
    has_goal, has_text = observation.goal_mask[:, 0, 0], observation.text_mask[:, 0, 0]
    assert not has_goal[number == 0].any()
    assert has_goal[number != 0].float().mean() == pytest.approx(0.25, abs=0.06)
    assert has_text.float().mean() == pytest.approx(0.75, abs=0.06)
    shown = observation.goal_images[:, 0, 0, 0, 0, 0]
    assert (shown[has_goal] == number[has_goal] + 10).all()
    assert (observation.goal_mask == observation.goal_mask[:, :1]).all()  # one coin for a whole window
    none = Sampler(mixture(path, keep_goal=0.0), seed=0).batch(0).observation
    assert none.goal_images.shape[2] == 0


def test_goals_from_successes_of_the_same_task(make_episode: Any, make_dataset: Any) -> None:
    episodes = [
        make_episode(i, 3 + i, cameras=["a"], success=i in (1, 2), instruction="x" if i < 2 else "y", last_known=i != 2)
        for i in range(4)
    ] + [make_episode(4, 5, cameras=["a"], success=False, instruction="z")]
    path = make_dataset("d", episodes)
    observation = Sampler(mixture(path, goals="success"), seed=0).batch(0).observation
    number = observation.proprio[:, 0, 0].long()
    shown, goal = observation.goal_mask[:, 0, 0], observation.goal_images[:, 0, 0, 0, 0, :2].long()
    assert (shown == (number < 4)).all()
    assert (goal[number < 2] == torch.tensor([1, 4])).all()  # episode 1, its last frame
    assert (goal[(number == 2) | (number == 3)] == torch.tensor([2, 4])).all()  # last *known* frame


def test_hindsight_goals_reward_arrival(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(i, 1 + 3 * i, cameras=["a"], last_known=i % 2 == 0) for i in range(4)])
    arrivals = 0
    for step in range(20):
        batch = Sampler(mixture(path, goals="hindsight", reward_scale=2.0), seed=0).batch(step)
        goal = batch.observation.goal_images[:, 0, 0, 0, 0, :2].float()
        state = batch.observation.proprio
        has_goal = batch.observation.goal_mask[:, 0, 0]
        assert (goal[has_goal, 0] == state[has_goal, 0, 0]).all()  # of the same episode
        assert (goal[has_goal, 1] > state[has_goal, 0, 1]).all()  # later
        assert not batch.mask[~has_goal].any()
        arrived = (state[:, 1:, 1] == goal[:, None, 1]) & batch.mask
        assert (batch.reward[batch.mask] == 2.0 * arrived[batch.mask]).all()
        assert (batch.discount[batch.mask] == 1.0 * ~arrived[batch.mask]).all()
        assert (state[:, 1:, 1] <= goal[:, None, 1])[batch.mask].all()  # nothing after it
        arrivals += int(arrived.sum())
    assert arrivals > 100


# --- what cannot be sampled ---


def test_mixtures_that_cannot_be_sampled(make_episode: Any, make_dataset: Any, tmp_path: Path) -> None:
    path = make_dataset("d", [make_episode(0, 5, cameras=["front"])])
    with pytest.raises(ValueError, match=r"has no camera 'fornt'\. Did you mean 'front'"):
        Sampler(mixture(path, cameras=["fornt"]), seed=0)
    with pytest.raises(ValueError, match="expected cameras for goals = 'hindsight'"):
        Sampler(mixture(path, cameras=[], goals="hindsight"), seed=0)
    with pytest.raises(ValueError, match="expected successful episodes"):
        Sampler(mixture(path, goals="success"), seed=0)
    with pytest.raises(ValueError, match=r"absent: expected a dataset"):
        Sampler(mixture(tmp_path / "absent"), seed=0)
    with pytest.raises(ValueError, match="divides"):
        Sampler(mixture(path, batch_size=6), seed=0, world_size=4)
    larger = make_dataset("larger", [make_episode(0, 5, cameras=["front"], size=(8, 8))])
    with pytest.raises(ValueError, match="d/front 4x5, larger/front 8x8"):
        Sampler(mixture(path, larger), seed=0)
    (path / "committed.json").unlink()
    with pytest.raises(ValueError, match="expected episodes, found none"):
        Sampler(mixture(path), seed=0)
    planned = {"name": "a", "weight": 1, "datasets": [{"name": "x", "counts": {"windows": 1}}]}
    with pytest.raises(ValueError, match="only declared counts"):
        Sampler(parse_mixture({"groups": [planned]}), seed=0)


def test_threads_never_share_a_buffer() -> None:
    def take(to: list[np.ndarray]) -> None:
        start.wait()
        to.append(buffers.allocate((4, 8)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(2000):
            buffers, start = BufferPool(), threading.Barrier(3)
            taken: list[np.ndarray] = []
            threads = [threading.Thread(target=take, args=(taken,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(taken, 2))
    finally:
        sys.setswitchinterval(interval)
