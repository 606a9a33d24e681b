"""How a decision can't half-happen: it is made on a copy of the state, and takes its place whole.

Copied is what can be changed in place: tables, sets, and their rows down to the frozen ones. What
is kept `IN_PLACE` isn't: a million subscriptions, the clients, and counters, which decide nothing.
So whatever a decision raises, the state is what it was, but for them.

Invariant: a state that contradicts itself never takes the place of the one before (invariants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from headgate.decide.coordination import invariants
from headgate.decide.coordination.effects import Effect, Persist
from headgate.decide.coordination.state import State

IN_PLACE = frozenset({"registry", "clients", "lane_totals", "growth", "settling", "load"})
Values = Callable[[Any], tuple[Any, ...]]

_FIELDS: dict[type, tuple[str, ...]] = {}
_VALUES: dict[type, Values] = {}

T = TypeVar("T")
S = TypeVar("S", bound=State)
P = ParamSpec("P")
Decision = Callable[Concatenate[S, P], list[Effect]]


def whole(decide: Decision[S, P]) -> Decision[S, P]:
    """`decide`, on a copy that becomes the state once it is decided and found sound."""

    @wraps(decide)
    def decided(state: S, /, *args: P.args, **kwargs: P.kwargs) -> list[Effect]:
        draft = drafted(state)
        effects = checked(draft, decide(draft, *args, **kwargs))
        for name, part in _parts(draft):
            setattr(state, name, part)
        return effects

    return decided


def checked(state: State, effects: list[Effect]) -> list[Effect]:
    """`effects`, of a decision that `state` came of; raises Contradiction where that can't be."""
    is_kept = any(isinstance(effect, Persist) for effect in effects)
    invariants.check(state, invariants.KEPT if is_kept else invariants.ALWAYS)
    return effects


def drafted(value: T) -> T:
    """A copy that can be changed without `value`; `value` itself where nothing can change it."""
    copy = _COPIERS[type(value)]
    return value if copy is None else copy(value)


def _changing(kind: type[Any]) -> tuple[str, ...]:
    """What an instance holds, of a kind that can be changed."""
    if kind not in _FIELDS:
        can_change = is_dataclass(kind) and not kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        names = tuple(field.name for field in fields(kind)) if can_change else ()
        _FIELDS[kind] = names
        # Of one name it would be the value, and not a tuple of one.
        _VALUES[kind] = attrgetter(*names) if len(names) > 1 else _the_only(names)
    return _FIELDS[kind]


def _the_only(names: tuple[str, ...]) -> Values:
    return lambda value: tuple(getattr(value, name) for name in names)


def _parts(value: object) -> Iterable[tuple[str, Any]]:
    """By name, of something that can be changed."""
    kind = type(value)
    return zip(_FIELDS[kind], _VALUES[kind](value), strict=True)


def _rows_copied(table: dict[Any, Any]) -> dict[Any, Any]:
    """All rows of a table are of one kind."""
    for row in table.values():
        copy = _COPIERS[type(row)]
        return table.copy() if copy is None else {key: copy(row) for key, row in table.items()}
    return {}


def _fields_copied(value: T) -> T:
    draft = object.__new__(type(value))
    for name, part in _parts(value):
        copy = _COPIERS[type(part)]
        setattr(draft, name, part if copy is None or name in IN_PLACE else copy(part))
    return draft


Copier = Callable[[Any], Any]


class _Copiers(dict[type, Copier | None]):
    """How values of a kind are copied, once it was asked; None where nothing can change them."""

    def __missing__(self, kind: type) -> Copier | None:
        copier: Copier | None = _fields_copied if _changing(kind) else None
        self[kind] = copier
        return copier


_COPIERS = _Copiers({set: set.copy, dict: _rows_copied})
