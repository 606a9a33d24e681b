"""Where a subscription hangs in the index, and what is left to ask there.

A filter becomes one part, or, where only a disjunction can be looked up, one part per alternative.
A part is shared by all filters of its shape; with the subscription and the constants it is an
entry.

Invariant: an entry that is found has met a number of its part's index keys; then `checks[number]`
gives the filter's answer. Where no part of a filter is found, the answer is false.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headgate.decide.filter.compile import condition
from headgate.decide.filter.exclusion import exclusion_of
from headgate.decide.filter.fast import Constants, Test
from headgate.decide.filter.paths import Path
from headgate.decide.filter.syntax import And, Expression, Or, conjuncts
from headgate.decide.matching.index_keys import MAX_KEYS, IndexKey, index_keys_of
from headgate.model.subscription import Subscription

MAX_INDEX_KEYS = 4
"""How deep a subscription may hang; the rest of its conditions is evaluated."""
MAX_ALTERNATIVES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A check of None: nothing is left to ask. The last check is there twice, because entries that
    stay at a node are asked like those that were found one step further.

    `split`: others belong to the same filter, each with the whole of it to ask, so that asking one
    of them is enough. `exclusion` is the whole filter's, whatever the part is.
    """

    index_keys: tuple[IndexKey, ...]
    checks: tuple[Test | None, ...]
    split: bool = False
    exclusion: Test | None = None

    def equalities(self) -> tuple[IndexKey, ...]:
        return tuple(index_key for index_key in self.index_keys if index_key.rank == 0)


class Entry(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A subscription in the index."""

    subscription: Subscription
    part: Branch
    constants: Constants


@dataclass(frozen=True, slots=True, eq=False)
class ShapeBranches:
    """How filters of one shape hang. `led_by` has the same with another equality in front."""

    parts: tuple[Branch, ...]
    led_by: dict[Path, Branch]


EVERYTHING = ShapeBranches((Branch((), (None, None)),), {})
"""Of subscriptions without a filter."""


def branches_of(shape: Expression) -> ShapeBranches:
    conditions = list(conjuncts(shape))
    index_keys = index_keys_of(conditions)
    exclusion = exclusion_of(shape)
    if index_keys:
        part = _part(conditions, index_keys, exclusion)
        equalities = part.equalities()
        led_by = {}
        if len(equalities) > 1:
            for leader in equalities:
                others = [index_key for index_key in index_keys if index_key is not leader]
                led_by[leader.path] = _part(conditions, [leader, *others], exclusion)
        return ShapeBranches((part,), led_by)
    whole = condition(shape)
    alternatives = _alternatives(shape)
    if alternatives is None:
        return ShapeBranches((Branch((), (whole, whole), exclusion=exclusion),), {})
    parts = (tuple(index_keys[:MAX_INDEX_KEYS]) for index_keys in alternatives)
    return ShapeBranches(
        tuple(
            Branch(each, (whole,) * (len(each) + 2), split=True, exclusion=exclusion)
            for each in parts
        ),
        {},
    )


def _part(
    conditions: list[Expression], index_keys: list[IndexKey], exclusion: Test | None
) -> Branch:
    index_keys = index_keys[:MAX_INDEX_KEYS]
    checks = [
        _unless_covered(conditions, index_keys[:depth]) for depth in range(len(index_keys) + 1)
    ]
    return Branch(tuple(index_keys), (*checks, checks[-1]), exclusion=exclusion)


def _unless_covered(conditions: list[Expression], index_keys: list[IndexKey]) -> Test | None:
    covered = {number for index_key in index_keys for number in index_key.covers}
    rest = [each for number, each in enumerate(conditions) if number not in covered]
    if len(rest) < 2:
        return condition(rest[0]) if rest else None
    return condition(And(tuple(rest)))


def _alternatives(node: Expression) -> list[list[IndexKey]] | None:
    """Lists of index keys of which one holds wherever `node` does; None: there are none."""
    conditions = list(conjuncts(node))
    if index_keys := index_keys_of(conditions):
        return [index_keys]
    found = [_any_of(each) for each in conditions if isinstance(each, Or)]
    return min((each for each in found if each is not None), key=len, default=None)


def _any_of(node: Or) -> list[list[IndexKey]] | None:
    found: list[list[IndexKey]] = []
    for operand in node.operands:
        alternatives = _alternatives(operand)
        if alternatives is None:
            return None
        found += alternatives
    keys = sum(max(index_key.keys for index_key in index_keys) for index_keys in found)
    return found if len(found) <= MAX_ALTERNATIVES and keys <= MAX_KEYS else None
