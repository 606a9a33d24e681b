"""Ways into a document: `flight.legs[0].from` is the path ("flight", "legs", 0, "from").

Invariant: a path that leads nowhere (a field that isn't there, an element beyond the end, a field
of something that has none) leads to MISSING, and never raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from headgate.decide.filter.syntax import Expression, Field, Index, Literal, Select
from headgate.decide.filter.values import MISSING

Document = dict[str, Any]
Reader = Callable[[Document], object]
Path = tuple[str | int, ...]


def path_of(node: Expression) -> Path | None:
    """The steps from the document to `node`; None when they depend on the document."""
    match node:
        case Field():
            return (node.name,)
        case Select():
            above, step = path_of(node.operand), node.name
            return None if above is None else (*above, step)
        case Index(key=Literal(kind="int" | "uint" | "string")):
            above = path_of(node.operand)
            return None if above is None else (*above, cast("Any", node.key).value)
        case _:
            return None


def step_into(found: object, step: object) -> object:
    """A field of an object by its name or an element of a list by its number; else MISSING."""
    if type(found) is dict:
        return found.get(step, MISSING) if type(step) is str else MISSING
    if type(found) is list and type(step) is int and 0 <= step < len(found):
        return found[step]
    return MISSING


def follow(path: Path) -> Reader:
    """The function that walks `path`; its first step is a name, because a document is an object."""
    name, rest = cast("str", path[0]), path[1:]
    if not rest:
        return lambda document: document.get(name, MISSING)

    def walk(document: Document) -> object:
        found = document.get(name, MISSING)
        for step in rest:
            found = step_into(found, step)
        return found

    return walk
