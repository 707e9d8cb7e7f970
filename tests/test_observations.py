"""Bad observations, actions and instructions: each has an error of its own, and none becomes an action."""

import copy
import dataclasses
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from factories import small_model

from pac.data.tokenizer import Tokenizer
from pac.embodiments import EmbodimentStats, PolicyMetadata
from pac.files import PlainWarning, ProblemError
from pac.model import PAC
from pac.policy import Policy
from pac.types import Query

STATE, TOP, WRIST = "observation.state", "observation.images.top", "observation.images.wrist"
ARM = EmbodimentStats(
    name="arm",
    instructions=("lift the cube",),
    action_low=(-1.0, -2.0),
    action_high=(1.0, 3.0),
    proprio_centre=(0.0, 1.0, 2.0),
    proprio_scale=(1.0, 2.0, 3.0),
    cameras=("top", "wrist"),
    value_scale=0.5,
    state_names=("x", "y", "gripper"),
    action_names=("dx", "dy"),
)
LEG = dataclasses.replace(
    ARM,
    name="leg",
    instructions=("walk",),
    proprio_centre=(0.0,) * 5,
    proprio_scale=(1.0,) * 5,
    cameras=(),
    state_names=(),
    action_names=(),
)


TOKENIZER = Tokenizer()


@functools.cache
def model(**changes: Any) -> PAC:
    sizes = {"num_proprio": 5, "num_cameras": 2, "vocabulary_size": TOKENIZER.vocabulary_size}
    return small_model(**sizes, **changes).eval()


def policy(*embodiments: EmbodimentStats, changes: Any = None, **options: Any) -> Policy:
    """Return a policy whose weights no other test changes."""
    slots = {"top": 0, "wrist": 1}
    metadata = PolicyMetadata(
        cameras=slots, goal_cameras={}, image_size=(16, 16), discount=0.9, embodiments=embodiments or (ARM, LEG)
    )
    return Policy(copy.deepcopy(model(**changes or {})), metadata, tokenizer=TOKENIZER, **options)


def observation(*batch: int, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    images = {name: random.integers(0, 256, (*batch, 16, 16, 3), np.uint8) for name in (TOP, WRIST)}
    return {STATE: random.normal(size=(*batch, 3)).astype(np.float32), **images}


def changed(name: str, change: Callable[[Any], Any], *batch: int) -> dict[str, Any]:
    found = observation(*batch)
    return found | {name: change(found[name])}


def with_number(value: float, *place: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return change


class Broken:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("on the moon")


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in observation().items() if key != name}


BAD: dict[str, tuple[Any, str]] = {
    "short state": (changed(STATE, lambda x: x[:2]), r"state: .*3 dim.*\(x, y, gripper\) as in 'arm' or 5.*found 2"),
    "long state": (changed(STATE, lambda x: np.r_[x, x]), r"observation.state: expected 3 dimensions.*found 6"),
    "scalar state": (changed(STATE, lambda x: x[0]), r"observation.state: expected shape \(dimensions,\).*shape \(\)"),
    "state of rank 3": (changed(STATE, lambda x: x[None, None]), r"observation.state: .*found shape \(1, 1, 3\)"),
    "NaN": (
        changed(STATE, with_number(np.nan, 2)),
        r"^observation.state, dimension 2 \(gripper\): expected a finite number, found nan",
    ),
    "infinity": (changed(STATE, with_number(-np.inf, 0)), r"dimension 0 \(x\): expected a finite number, found -inf"),
    "NaN in a batch": (
        changed(STATE, with_number(np.nan, 3, 1), 4),
        r"^Row 3, observation.state, dimension 1 \(y\): .* found nan",
    ),
    "too large for float32": (changed(STATE, lambda x: x.astype(float) + 1e300), r"dimension 0 \(x\): .*found 1e\+300"),
    "objects": (changed(STATE, lambda x: x.astype(object)), r"state: expected real numbers, found dtype obj"),
    "text": (changed(STATE, lambda x: x.astype(str)), r"observation.state: expected real numbers, found dtype <U"),
    "complex": (changed(STATE, lambda x: x + 1j), r"observation.state: expected real numbers, found dtype complex"),
    "ragged": (changed(STATE, lambda x: [[1.0], [1.0, 2.0]]), r"state: expected an array, found list, which"),
    "not convertible": (changed(STATE, lambda x: Broken()), r"observation.state: .*Broken.*on the moon"),
    "None": (None, r"observation.state: expected shape .* found object of shape \(\)"),
    "no state": (without(STATE), r"observation.state: expected 3 dimensions.*found no state"),
    "empty dict": ({}, r"Observation: expected observation.state or images, found an empty dict"),
    "number as a name": ({1: 2}, r"Observation: expected names of features as keys, found 1"),
    "missing camera": (without(WRIST), r"observation.images.wrist: expected images of top wrist, found none"),
    "no cameras": (np.zeros(3), r"observation.images.wrist: expected images of top wrist, found none"),
    "unknown camera": (
        observation() | {"observation.images.wirst": np.zeros((16, 16, 3), np.uint8)},
        r"a camera that the policy uses, found 'observation.images.wirst'. Did you mean 'wrist'\?",
    ),
    "unknown feature": (observation() | {"stat": np.zeros(3)}, r"a feature .* found 'stat'. Did you mean 'state'\?"),
    "a camera of another dataset": (
        {"state": np.zeros(5), "top": observation()[TOP]},
        r"observation.images.top: expected a feature that the policy uses, found another. Leave it out",
    ),
    "two names of one feature": (observation() | {"state": np.zeros(3)}, r"state: expected one value, found two"),
    "floats from 0 to 1": (changed(TOP, lambda x: x / 255), r"top: expected uint8, found dtype float64.*255 \* image"),
    "floats from 0 to 255": (changed(TOP, lambda x: x.astype("f4")), r"top: expected uint8, found dtype float32. Pass"),
    "wide integers": (changed(WRIST, lambda x: x.astype(int)), r"images.wrist: expected uint8, found dtype int64"),
    "channels first": (changed(TOP, lambda x: x.transpose(2, 0, 1)), r"top: .*found channels first, shape \(3, 16"),
    "grey": (changed(TOP, lambda x: x[..., :1]), r"images.top: expected 3 channels \(RGB\), found 1 channel \(grey\)"),
    "transparent": (changed(TOP, lambda x: x[..., [0, 1, 2, 0]]), r"top: .* 4 channels \(RGBA\)"),
    "five channels": (changed(TOP, lambda x: x[..., [0, 1, 2, 0, 1]]), r"top: .* 5 channels, sh"),
    "image of rank 2": (changed(TOP, lambda x: x[..., 0]), r"images.top: expected shape .*found shape \(16, 16\)"),
    "image of rank 5": (changed(TOP, lambda x: x[None, None]), r"images.top: .*found shape \(1, 1, 16, 16, 3\)"),
    "empty image": (changed(TOP, lambda x: x[:0]), r"images.top: .*not empty, found shape \(0, 16, 3\)"),
    "one feature of a batch": (changed(STATE, lambda x: x[None]), r"of one batch, found observation.state \(1, 3"),
    "batch sizes": (changed(STATE, lambda x: x[:3], 4), r"expected one batch size, found observation.state 3, .*top 4"),
    "empty batch": (observation(0), r"observation.state: expected at least one row, found an empty batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD))
def test_each_bad_observation_has_its_own_error(name: str) -> None:
    given, pattern = BAD[name]
    with pytest.raises(ProblemError, match=pattern) as caught:
        policy().prepare(given)
    assert re.fullmatch(r"(?s).+: expected .+, found .+\. .+", str(caught.value))


def test_the_errors_differ() -> None:
    texts, actor = set(), policy()
    for given, _ in BAD.values():
        with pytest.raises(ProblemError) as caught:
            actor.prepare(given)
        texts.add(str(caught.value))
    assert len(texts) >= len(BAD) - 1  # a missing camera reads the same with and without the other one


VALID: dict[str, Callable[[], Any]] = {
    "one step": observation,
    "short names": lambda: {key.rpartition(".")[2]: value for key, value in observation().items()},
    "a batch of one": lambda: observation(1),
    "a batch": lambda: observation(20),
    "lists": lambda: changed(STATE, lambda x: x.tolist()),
    "tensors": lambda: {key: torch.from_numpy(value) for key, value in observation().items()},
    "integers": lambda: changed(STATE, lambda x: x.astype(int)),
    "doubles": lambda: changed(STATE, lambda x: x.astype(float)),
    "flags": lambda: changed(STATE, lambda x: x > 0),
    "flipped images": lambda: changed(TOP, lambda x: x[::-1]),
    "another size": lambda: {**observation(), TOP: np.zeros((9, 30, 3), np.uint8)},
    "one camera's size": lambda: {**observation(2), TOP: np.zeros((2, 9, 30, 3), np.uint8)},
}


@pytest.mark.parametrize("name", list(VALID))
def test_valid_observations_act(name: str) -> None:
    actor, given = policy(values=True), VALID[name]()
    queries, batched = actor.prepare(given, seed=5, step=7)
    assert batched == ("batch" in name or name == "one camera's size")
    assert [query.seed for query in queries] == list(range(5, 5 + len(queries)))
    replies = actor.act(queries)
    for query, reply in zip(queries, replies, strict=True):
        assert (reply.action >= ARM.action_low).all()
        assert (reply.action <= ARM.action_high).all()
        (alone,) = actor.act([query])
        np.testing.assert_array_equal(alone.action, reply.action)
    values = actor.value(queries)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, [actor.value([query])[0] for query in queries])


def test_a_prepared_observation_acts_as_an_environments_does() -> None:
    actor, given = policy(), observation()
    (query,), _ = actor.prepare(given, seed=3, step=4)
    task = dataclasses.replace(query.task, name="lab/arm", max_steps=50)
    other = Query(task=task, observation=given, seed=3, step=4)
    np.testing.assert_array_equal(actor.act([query])[0].action, actor.act([other])[0].action)


def test_images_of_another_size_are_resized_in_the_same_way_alone_and_beside_others() -> None:
    actor, big = policy(), np.random.default_rng(1).integers(0, 256, (33, 20, 3), np.uint8)
    (same,), _ = actor.prepare({**observation(), TOP: big, WRIST: big})
    (other,), _ = actor.prepare({**observation(seed=1), WRIST: big})
    together = actor.act([same, other])
    for query, reply in zip((same, other), together, strict=True):
        np.testing.assert_array_equal(actor.act([query])[0].action, reply.action)


# ---------------------------------------------------------------------------------------------- queries of environments


def query(**changes: Any) -> Query:
    return policy().prepare(observation(), step=6)[0][0] if not changes else dataclasses.replace(query(), **changes)


QUERIES: dict[str, tuple[str, Any, str]] = {
    "NaN": (STATE, np.array([0, np.nan, 0], np.float32), r"step 6, observation.state, dimension 1 \(y\): .*found nan"),
    "size": (STATE, np.zeros(4, np.float32), r"observation.state: expected 3 numbers, shape \(3,\) \(x, y, gripper\)"),
    "dtype": (STATE, np.zeros(3, complex), r"observation.state: expected real numbers, found dtype complex128"),
    "float image": (TOP, np.zeros((16, 16, 3)), r"step 6, observation.images.top: expected uint8, found dtype float64"),
    "channels first": (TOP, np.zeros((3, 16, 16), np.uint8), r"images.top: .*found channels first"),
    "a batch": (TOP, np.zeros((1, 16, 16, 3), np.uint8), r"images.top: expected shape \(height, width, 3\)"),
    "camera": ("observation.images.side", np.zeros((16, 16, 3), np.uint8), r"side: expected a feature that the policy"),
}


@pytest.mark.parametrize("name", list(QUERIES))
@pytest.mark.parametrize("how", ["act", "value", "q"])
def test_a_bad_query_among_good_ones_is_refused(name: str, how: str) -> None:
    feature, value, pattern = QUERIES[name]
    queries = [query()] * 20 + [query(observation=observation() | {feature: value})]
    given = [np.zeros((21, 2))] if how == "q" else []
    with pytest.raises(ProblemError, match=f"Task 'arm', .*{pattern}"):
        getattr(policy(), how)(queries, *given)


def test_an_environment_may_render_more_cameras_than_the_policy_uses() -> None:
    more = dataclasses.replace(query().task, cameras=("side", "top", "wrist"))
    seen = observation() | {"observation.images.side": np.zeros((4, 4, 3), np.uint8)}
    (found,), (usual,) = policy().act([query(task=more, observation=seen)]), policy().act([query()])
    np.testing.assert_array_equal(found.action, usual.action)


# ------------------------------------------------------------------------------------------------------- broken models


@pytest.mark.parametrize("sampling", ["sample", "mode", "mean", "median", "interquartile"])
@pytest.mark.parametrize("part", ["policy", "latents"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_model_gives_no_action(sampling: str, part: str, value: float) -> None:
    """Sampling from NaN gives a bin like any other, so the logits are checked, too."""
    actor = policy(sampling=sampling)
    with torch.no_grad():
        for name, parameter in actor.model.named_parameters():
            if name.startswith(part):
                parameter.fill_(value)
    with pytest.raises(ProblemError, match=r"step 6, policy policy: expected a finite action, found nan. Its weights"):
        actor.act([query()])
    with pytest.raises(ProblemError, match="expected a finite value"):
        actor.value([query()])


def test_a_broken_critic_chooses_no_action() -> None:
    actor = policy(best_of=3)
    with torch.no_grad():
        for name, parameter in actor.model.named_parameters():
            if name.startswith("q."):
                parameter.fill_(np.nan)
    with pytest.raises(ProblemError, match="expected a finite action, found nan"):
        actor.act([query()])
    with pytest.raises(ProblemError, match="expected a finite value"):
        actor.q([query()], np.zeros((1, 2)))


# ------------------------------------------------------------------------------------------------------ value and q


def test_values_are_those_of_the_replies() -> None:
    """Q of the action that was taken, in units of raw rewards. The value averages Q over sampled actions."""
    actor = policy(values=True)
    queries, _ = actor.prepare(observation(20))
    replies = actor.act(queries)
    actions = np.array([reply.action for reply in replies])
    np.testing.assert_allclose(actor.q(queries, actions), [reply.value for reply in replies], rtol=1e-4, atol=1e-5)
    doubled = policy(dataclasses.replace(ARM, value_scale=1.0))
    np.testing.assert_allclose(actor.q(queries, actions), 2 * doubled.q(queries, actions), rtol=1e-6)
    many = [query for step in range(320) for query in actor.prepare(observation(), step=step)[0]]
    chosen = np.array([reply.value for reply in actor.act(many)])
    averaged = actor.value(many[:32])
    assert abs(averaged.mean() - chosen.mean()) < 4 * chosen.std() / len(chosen) ** 0.5
    assert averaged.std() < 0.5 * chosen.std()  # of ten samples each


def test_the_value_of_pac_v_is_its_head() -> None:
    actor = policy(changes={"q_head": False}, values=True)
    queries, _ = actor.prepare(observation(3))
    np.testing.assert_array_equal(actor.value(queries), np.float32([reply.value for reply in actor.act(queries)]))
    with pytest.raises(ValueError, match=r"Q head, which pac and bc\+q train, found a V head alone \(pac\+v\)"):
        actor.q(queries, np.zeros((3, 2)))


def test_cloning_has_no_value() -> None:
    actor = policy(changes={"q_head": False, "v_head": False})
    for call in (lambda: actor.value([query()]), lambda: actor.q([query()], np.zeros((1, 2)))):
        with pytest.raises(
            ValueError, match=r"pac(, bc\+q and pac\+v| and bc\+q) train, found a policy without a critic"
        ):
            call()


ACTIONS: dict[str, tuple[Any, str]] = {
    "one too few": (np.zeros((2, 2)), r"action: .*\(3, 2\), .*\(dx, dy\), found \(2"),
    "size": (np.zeros((3, 4)), r"action: expected shape \(3, 2\).*found \(3, 4\)"),
    "rank": (np.zeros(2), r"action: expected shape \(3, 2\).*found \(2,\)"),
    "dtype": (np.zeros((3, 2), object), r"action: expected numbers, found dtype object"),
    "NaN": (np.array([[0, 0], [0, np.nan], [0, 0]]), r"Row 1, action, dimension 1 \(dy\): .* found nan"),
    "above": (np.array([[0, 0], [0, 0], [1.01, 0]]), r"Row 2, action, .*dx.*within \[-1, 1\], found 1.01"),
}


@pytest.mark.parametrize("name", list(ACTIONS))
def test_bad_actions_have_no_value(name: str) -> None:
    actions, pattern = ACTIONS[name]
    actor = policy()
    with pytest.raises(ProblemError, match=pattern):
        actor.q(actor.prepare(observation(3))[0], actions)


def test_rounding_may_put_an_action_outside_its_bounds() -> None:
    actor = policy()
    queries, _ = actor.prepare(observation(2))
    inside, outside = (np.tile(ARM.action_high, (2, 1)) + slack for slack in (0, 1e-6))
    np.testing.assert_array_equal(actor.q(queries, inside), actor.q(queries, outside))


# ------------------------------------------------------------------------------------------------------- instructions


@pytest.fixture(autouse=True)
def _nothing_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pac.embodiments._SHOWN", set())


def named(*texts: str, **changes: Any) -> EmbodimentStats:
    return dataclasses.replace(ARM, instructions=texts, cameras=(), **changes)


STATE_ONLY = np.zeros(3, np.float32)


def test_the_only_known_instruction_is_used_and_said_once() -> None:
    actor = policy(named("lift the cube"))
    (usual,), _ = actor.prepare(STATE_ONLY)
    assert usual.task.instruction == "lift the cube"
    with pytest.warns(PlainWarning, match="instruction 'sing' was not in training.*is used: 'lift the cube'") as shown:
        found = [actor.prepare(STATE_ONLY, instruction="sing", step=step)[0][0] for step in range(3)]
    assert {one.task.instruction for one in found} == {"lift the cube"}
    assert len(shown) == 1
    task = dataclasses.replace(usual.task, name="lab/other", instruction="dance")
    with pytest.warns(PlainWarning, match="Task 'lab/other': instruction 'dance' was not in training") as shown:
        replies = [actor.act([Query(task=task, observation=usual.observation, seed=0, step=0)])[0] for _ in range(3)]
    assert len(shown) == 1
    np.testing.assert_array_equal(replies[0].action, actor.act([usual])[0].action)


def test_several_known_instructions_are_listed_and_others_refused() -> None:
    texts = [f"push block {i}" for i in range(20)] + ["sing a song"]
    actor = policy(named(*texts))
    with pytest.raises(ProblemError, match=r"has 21, .* nearest are 'sing a song', 'push.*found 'sing'") as e:
        actor.prepare(STATE_ONLY, instruction="sing")
    assert str(e.value).count("push block") == 9
    with pytest.raises(ProblemError, match=r"instruction: expected one of the training.*found none. Name one"):
        actor.prepare(STATE_ONLY)
    (query,), _ = actor.prepare(STATE_ONLY, instruction="sing", any_instruction=True)
    assert (query.task.instruction, query.any_instruction) == ("sing", True)
    actor.sampling = "mean"
    shown, known = actor.act([query])[0], actor.act(actor.prepare(STATE_ONLY, instruction=texts[0])[0])[0]
    assert tuple(shown.action) != tuple(known.action)  # the text itself was shown
    with pytest.raises(ProblemError, match="found 'sing'"):
        actor.act([dataclasses.replace(query, any_instruction=False)])


def test_without_instructions_in_training_any_text_is_silently_fine() -> None:
    for embodiment in (named("a", "b", language_conditioned=False), named("c", language_conditioned=False), named("")):
        actor = policy(embodiment)
        found = [actor.act(actor.prepare(STATE_ONLY, instruction=text)[0])[0].action for text in (None, "sing", "a")]
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])
    hidden = policy(named("a", "b"), text=False)
    np.testing.assert_array_equal(*(hidden.act(hidden.prepare(STATE_ONLY, instruction=t)[0])[0].action for t in "ax"))


def test_no_instruction_is_known_where_some_episodes_have_none() -> None:
    actor = policy(named("", "lift"))
    assert actor.prepare(STATE_ONLY)[0][0].task.instruction == ""
    with pytest.warns(PlainWarning, match="The only one that was is used: 'lift'"):
        assert actor.prepare(STATE_ONLY, instruction="sing")[0][0].task.instruction == "lift"


def test_any_instruction_takes_the_statistics_of_the_nearest_and_says_so() -> None:
    push = named("push", name="pusher", proprio_centre=(9.0, 9.0, 9.0))
    actor = policy(named("lift"), push)
    with pytest.warns(PlainWarning, match="'pushing' was not in training. The statistics of 'pusher' are used"):
        (query,), _ = actor.prepare(STATE_ONLY, instruction="pushing", any_instruction=True)
    assert query.dataset == "pusher"
    assert actor.metadata.match(query.task, any_instruction=True).embodiment == push


def test_sizes_and_the_instruction_choose_the_dataset() -> None:
    other = named("lift the cube", name="other", action_high=(5.0, 5.0))
    actor = policy(named("lift the cube", "turn"), other, LEG)
    assert actor.prepare(np.zeros(5))[0][0].dataset == "leg"
    assert actor.prepare(STATE_ONLY, instruction="turn")[0][0].dataset == "arm"
    with pytest.raises(ProblemError, match=r"several, whose actions or cameras differ: arm, other. .*dataset="):
        actor.prepare(STATE_ONLY, instruction="lift the cube")
    (query,), _ = actor.prepare(STATE_ONLY, instruction="lift the cube", dataset="other")
    assert query.task.action_high == (5.0, 5.0)
    assert actor.act([query])[0].action.shape == (2,)
    with pytest.raises(ProblemError, match=r"dataset: .*arm, other, leg, found 'othr'. Did you mean 'other'"):
        actor.prepare(STATE_ONLY, dataset="othr")
    with pytest.raises(ProblemError, match=r"state: expected 5 dimensions as in 'leg', found 3"):
        actor.prepare(STATE_ONLY, dataset="leg")
    noisy = named("lift the cube", name="noisy", proprio_scale=(4.0, 4.0, 4.0))
    assert policy(named("lift the cube"), noisy).prepare(STATE_ONLY)[0][0].dataset == "arm"


def test_metadata_of_older_checkpoints_has_no_names() -> None:
    whole = policy().metadata
    assert PolicyMetadata.from_json(whole.as_json(), "here") == whole
    old = whole.as_json()
    old["embodiments"] = [{k: v for k, v in x.items() if not k.endswith("names")} for x in old["embodiments"]]
    assert PolicyMetadata.from_json(old, "here").embodiments[0].state_names == ()


# ----------------------------------------------------------------------------------------------------- many bad inputs


def corrupt(random: np.random.Generator, batches: float = 0.5) -> tuple[Any, str]:
    """Return a valid observation that was spoilt in one way, and the feature or word that the error must name."""
    rows = int(random.integers(1, 5)) if random.random() < batches else 0
    batch = (rows,) if rows else ()
    found = observation(*batch, seed=int(random.integers(2**31)))
    camera = str(random.choice([TOP, WRIST]))
    place = (*(int(random.integers(n)) for n in batch), int(random.integers(3)))
    dtype = random.choice(["complex64", "O", "U9", "S9", "M8[s]", "V8"])
    size = int(random.choice([1, 2, 4, 6, 50]))
    channels = int(random.choice([1, 2, 4, 7]))
    ways: list[Callable[[], tuple[Any, str]]] = [
        lambda: (found | {STATE: with_number(random.choice([np.nan, np.inf, -np.inf]), *place)(found[STATE])}, STATE),
        lambda: (found | {STATE: np.resize(found[STATE], (*batch, size))}, STATE),
        lambda: (found | {STATE: np.zeros((*batch, 3), dtype)}, STATE),
        lambda: (found | {STATE: found[STATE][None, None]}, STATE),
        lambda: (found | {STATE: found[STATE].astype(float) * 1e300 + 1e200}, STATE),
        lambda: (found | {STATE: [[0.0], 1.0]}, STATE),
        lambda: ({k: v for k, v in found.items() if k != camera}, camera),
        lambda: ({k: v for k, v in found.items() if k != STATE}, STATE),
        lambda: (found | {f"{camera}{random.integers(100)}": found[camera]}, camera),
        lambda: (found | {f"extra{random.integers(100)}": found[STATE]}, "extra"),
        lambda: (found | {camera: found[camera].astype(random.choice(["f2", "f4", "f8", "i4", "?"]))}, camera),
        lambda: (found | {camera: found[camera] / 255}, camera),
        lambda: (found | {camera: np.moveaxis(found[camera], -1, -3)}, camera),
        lambda: (found | {camera: np.resize(found[camera], (*batch, 16, 16, channels))}, camera),
        lambda: (found | {camera: found[camera][..., 0, 0]}, camera),
        lambda: (found | {camera: found[camera][..., :0, :, :]}, camera),
        lambda: (found | {camera: None}, camera),
        lambda: (found | {STATE: np.zeros((rows + 1, 3))}, STATE),
        lambda: (observation(0), STATE),
    ]
    return ways[int(random.integers(len(ways)))]()


def test_ten_thousand_bad_observations_give_one_error_each_and_no_action() -> None:
    random, actor, texts = np.random.default_rng(0), policy(), set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(10_000):
            given, feature = corrupt(random)
            try:
                actor.act(actor.prepare(given)[0])
            except ProblemError as error:
                text = str(error)
            else:
                pytest.fail(f"observation {number} became an action: {given}")
            assert feature in text, (feature, text)
            assert re.fullmatch(r"(?s)[^:]+: expected .+, found .+\. .+", text), text
            texts.add(text)
    assert len(texts) > 200


def test_bad_observations_of_environments_give_no_action_either() -> None:
    random, actor, refused = np.random.default_rng(1), policy(), 0
    for _ in range(500):
        given, feature = corrupt(random, batches=0)
        if any(not isinstance(value, np.ndarray) for value in given.values()):
            continue  # the types of a query's arrays are checked in tests
        bad = dataclasses.replace(query_once(), observation=given)
        with pytest.raises(ProblemError, match=re.escape(feature)):
            actor.act([query_once()] * 3 + [bad])
        refused += 1
    assert refused > 400


QUERY: list[Query] = []


def query_once() -> Query:
    QUERY[:] = QUERY or [query()]
    return QUERY[0]
