import numpy as np
import pytest
from behaviour_envs import Ones, play, still_env

from pac.behaviours import FAULT_MODES
from pac.behaviours.base import BehaviourMixture, Noise, Random, Uniform


def test_random_covers_asymmetric_bounds() -> None:
    actions, modes = play(Random(), 4000)
    assert actions.dtype == np.float32
    assert actions.min() >= -1
    assert actions.max() <= 3
    np.testing.assert_allclose(actions.mean(0), 1, atol=0.1)
    np.testing.assert_allclose(actions.std(0), 4 / 12**0.5, atol=0.05)
    assert not modes.any()


def test_noise_is_a_share_of_half_the_range_and_stays_within_bounds() -> None:
    actions, modes = play(Noise(Ones(), sigma=0.1), 4000)
    np.testing.assert_allclose(actions.std(0), 0.2, atol=0.02)
    assert not modes.any()
    wild, _ = play(Noise(Ones(), sigma=9.0), 100)
    assert wild.min() == -1
    assert wild.max() == 3


def test_uniform_labels_exactly_the_actions_it_replaced() -> None:
    actions, modes = play(Uniform(Ones(), p=0.3), 4000)
    replaced = (actions != 1).any(1)
    np.testing.assert_array_equal(modes == FAULT_MODES.index("uniform"), replaced)
    assert abs(replaced.mean() - 0.3) < 0.03


def test_a_mixture_keeps_one_part_an_episode_and_follows_its_weights() -> None:
    mixture, actors = BehaviourMixture([Ones(), Random()], [3.0, 1.0]), []
    for seed in range(200):
        mixture.begin(still_env(), np.random.default_rng(seed))
        actions = [mixture.act({}) for _ in range(3)]
        actors.append(mixture.labels["actor"])
        assert (np.array(actions) == 1).all() == (actors[-1] == 0)
    assert 0.15 < np.mean(actors) < 0.35


@pytest.mark.parametrize("seed", [0, 1])
def test_all_draws_come_from_the_generator_that_was_given(seed: int) -> None:
    behaviour = Uniform(Noise(Random()))
    first, _ = play(behaviour, 20, seed)
    play(behaviour, 7, 99)  # another episode between leaves no trace
    np.testing.assert_array_equal(play(behaviour, 20, seed)[0], first)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Noise(Ones(), sigma=-1.0)
    with pytest.raises(ValueError, match="within 0 and 1"):
        Uniform(Ones(), p=2.0)
    with pytest.raises(ValueError, match="weight"):
        BehaviourMixture([Ones()], [0.0])
