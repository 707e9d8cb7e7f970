import pytest

from pac.behaviours import Behaviour, make
from pac.behaviours.base import BehaviourMixture, Noise, Random, Uniform
from pac.behaviours.faults import Faults
from pac.behaviours.scripted import Scripted


def test_wrappers_apply_from_left_to_right() -> None:
    behaviour = make("scripted+noise:sigma=1e+0 + uniform:p=.25")
    assert isinstance(behaviour, Uniform)
    assert behaviour.p == 0.25
    assert isinstance(behaviour.inner, Noise)
    assert behaviour.inner.sigma == 1
    assert isinstance(behaviour.inner.inner, Scripted)
    assert isinstance(behaviour, Behaviour)


def test_options_are_read_as_their_parameters_say() -> None:
    behaviour = make("scripted+faults:clean=0.2,switch=15-50,offset=0.1-0.3,act-for=7")
    assert isinstance(behaviour, Faults)
    assert behaviour.switch == (15, 50)
    assert behaviour.offset == (0.1, 0.3)
    assert behaviour.act_for == (7, 7)
    assert behaviour.shares["clean"] == pytest.approx(0.2)


def test_a_named_fault_is_the_only_fault_mode() -> None:
    behaviour = make("scripted+stop-short:after=10-60")
    assert isinstance(behaviour, Faults)
    assert behaviour.shares["stop-short"] == 1
    assert sum(behaviour.shares.values()) == 1


def test_mixtures_have_weights_and_may_nest() -> None:
    behaviour = make("mixture(3*scripted+faults:clean=0.5,switch=15-50,mixture(random,scripted),random)")
    assert isinstance(behaviour, BehaviourMixture)
    first, second, third = behaviour.parts
    assert isinstance(first, Faults)
    assert first.switch == (15, 50)
    assert isinstance(second, BehaviourMixture)
    assert isinstance(third, Random)
    assert behaviour.weights == pytest.approx([0.6, 0.2, 0.2])
    assert isinstance(make("mixture(scripted,random)+noise"), Noise)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scriptd", "Did you mean 'scripted'"),
        ("scripted+wronggoal", "Did you mean 'wrong-goal'"),
        ("noise", "Expected a behaviour"),
        ("scripted+noise:sigm=1", "Did you mean 'sigma'"),
        ("scripted+noise:sigma", "key=value"),
        ("scripted+noise:sigma=big", "Expected a number, found 'big'"),
        ("scripted+faults:switch=1.5", "Expected a whole number"),
        ("scripted+faults:switch=50-15", "from low to high"),
        ("random:x=1", "has no options"),
        ("mixture(random", "as many"),
        ("mixture()", "such as"),
        ("", "Choose from"),
    ],
)
def test_mistakes_are_explained(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(text)
