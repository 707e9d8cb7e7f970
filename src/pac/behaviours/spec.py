"""Parser of the texts that name behaviours: `planner:samples=64+hesitate`, `mixture(3*scripted,random)`.

behaviour := base ("+" wrapper)*         base, wrapper := name [":" key "=" value ("," key "=" value)*]
base      := ... | "mixture(" part ("," part)* ")"     part := [weight "*"] behaviour
value     := number | word | from "-" to               keys may be written with "-" or "_"
"""

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from pac.behaviours.base import FAULT_MODES, Behaviour, BehaviourMixture, Noise, Random, Uniform
from pac.behaviours.faults import Faults
from pac.behaviours.learner import Learner
from pac.behaviours.planner import Planner
from pac.behaviours.scripted import Scripted
from pac.config import suggest
from pac.old_names import rename_behaviour_option

BASES: dict[str, Callable[..., Behaviour]] = {
    "learner": Learner,
    "planner": Planner,
    "random": Random,
    "scripted": Scripted,
}
SINGLE_FAULTS = [name for name in FAULT_MODES if name not in ("clean", "uniform")]
WRAPPERS: dict[str, Callable[..., Behaviour]] = {
    "noise": Noise,
    "uniform": Uniform,
    "faults": Faults,
    **{name: partial(Faults, **dict[str, Any]({name.replace("-", "_"): 1.0})) for name in SINGLE_FAULTS},
}


def make(text: str) -> Behaviour:
    """Return the behaviour that a text names, such as "scripted+faults:clean=0.3,switch=15-50"."""
    base, *wrappers = split(text, "+")
    behaviour = make_mixture(base) if base.startswith("mixture(") else build(base, BASES, text)
    for wrapper in wrappers:
        behaviour = build(wrapper, WRAPPERS, text, behaviour)
    return behaviour


def make_mixture(text: str) -> BehaviourMixture:
    inside = text.removeprefix("mixture(")
    if not inside.endswith(")") or not inside[:-1].strip():
        raise ValueError(f"Expected a mixture such as 'mixture(scripted,random)', found {text!r}.")
    parts, weights = list[Behaviour](), list[float]()
    for piece in join_options(split(inside[:-1], ",")):
        weighted = re.match(r"([\d.]+)\*(.*)", piece)
        weight, part = weighted.groups() if weighted else ("1", piece)
        weights.append(number(weight, float, text))
        parts.append(make(part))
    return BehaviourMixture(parts, weights)


def split(text: str, mark: str) -> list[str]:
    """Split at marks outside parentheses, but not at the sign of an exponent, as in 1e+3."""
    pieces, depth = [""], 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        exponent = letter == "+" and re.search(r"\de$", text[:i]) is not None
        if letter == mark and depth == 0 and not exponent:
            pieces.append("")
        else:
            pieces[-1] += letter
    if depth:
        raise ValueError(f"Expected as many '(' as ')' in a behaviour, found {text!r}.")
    return [piece.strip() for piece in pieces]


def join_options(pieces: list[str]) -> list[str]:
    """Join pieces of a mixture that begin with `key=` to the piece before. Commas separate options, too."""
    joined = list[str]()
    for piece in pieces:
        if joined and re.match(r"[A-Za-z_-]+\s*=", piece):
            joined[-1] += f",{piece}"
        else:
            joined.append(piece)
    return joined


def build(text: str, table: dict[str, Callable[..., Behaviour]], where: str, *inner: Behaviour) -> Behaviour:
    name, _, options = text.partition(":")
    name = name.strip()
    if name not in table:
        kind = "a wrapper after '+'" if inner else "a behaviour"
        raise ValueError(f"Expected {kind}, found {name!r} in {where!r}.{suggest(name, table)}")
    parameters = inspect.signature(table[name]).parameters
    known = {k: v for k, v in parameters.items() if v.kind is inspect.Parameter.KEYWORD_ONLY}
    chosen = dict[str, Any]()
    for option in options.split(",") if options.strip() else []:
        key, equals, value = (part.strip() for part in option.partition("="))
        key = rename_behaviour_option(name, key.replace("-", "_"))
        if not equals or key not in known:
            shown = [k.replace("_", "-") for k in known]
            hint = suggest(key.replace("_", "-"), shown) if known else " It has no options."
            raise ValueError(f"Expected options of {name!r} as key=value, found {option.strip()!r} in {where!r}.{hint}")
        chosen[key] = convert(value, known[key].annotation, f"{name}: {option.strip()}")
    return table[name](*inner, **chosen)


def convert(text: str, annotation: Any, where: str) -> Any:
    """Return a value of the type that its parameter's annotation names."""
    name = str(annotation)
    kind: type = int if "int" in name else float if "float" in name else str
    if "tuple" in name:
        low, _, high = text.partition("-")
        span = number(low, kind, where), number(high or low, kind, where)
        if span[0] > span[1] or span[0] < 0:
            raise ValueError(f"Expected a range such as 15-50, from low to high, found {text!r} in {where!r}.")
        return span
    return text if kind is str else number(text, kind, where)


def number(text: str, kind: type, where: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        word = "a whole number" if kind is int else "a number"
        raise ValueError(f"Expected {word}, found {text!r} in {where!r}.") from None
