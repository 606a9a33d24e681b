"""Where a subscription hangs in the index, and what is left to ask there.

A filter becomes one part, or, where only a disjunction can be looked up, one part per alternative.
A part is shared by all filters of its shape; with the subscription and the constants it is an
entry.

Invariant: an entry that is found has met a number of its part's probes; then `checks[number]` gives
the filter's answer. Where no part of a filter is found, the answer is false.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headgate.decide.filter.compile import condition
from headgate.decide.filter.exclusion import exclusion_of
from headgate.decide.filter.fast import Constants, Test
from headgate.decide.filter.paths import Path
from headgate.decide.filter.syntax import And, Expression, Or, conjuncts
from headgate.decide.matching.probes import MAX_KEYS, Probe, probes_of
from headgate.model.subscription import Subscription

MAX_PROBES = 4
"""How deep a subscription may hang; the rest of its conditions is evaluated."""
MAX_ALTERNATIVES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A check of None: nothing is left to ask. The last check is there twice, because entries that
    stay at a node are asked like those that were found one step further.

    `split`: others belong to the same filter, each with the whole of it to ask, so that asking one
    of them is enough. `exclusion` is the whole filter's, whatever the part is.
    """

    probes: tuple[Probe, ...]
    checks: tuple[Test | None, ...]
    split: bool = False
    exclusion: Test | None = None

    def equalities(self) -> tuple[Probe, ...]:
        return tuple(probe for probe in self.probes if probe.rank == 0)


class Entry(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A subscription in the index."""

    subscription: Subscription
    part: Part
    constants: Constants


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How filters of one shape hang. `led_by` has the same with another equality in front."""

    parts: tuple[Part, ...]
    led_by: dict[Path, Part]


EVERYTHING = Plan((Part((), (None, None)),), {})
"""Of subscriptions without a filter."""


def plan_of(shape: Expression) -> Plan:
    conditions = list(conjuncts(shape))
    probes = probes_of(conditions)
    exclusion = exclusion_of(shape)
    if probes:
        part = _part(conditions, probes, exclusion)
        equalities = part.equalities()
        led_by = {}
        if len(equalities) > 1:
            for leader in equalities:
                others = [probe for probe in probes if probe is not leader]
                led_by[leader.path] = _part(conditions, [leader, *others], exclusion)
        return Plan((part,), led_by)
    whole = condition(shape)
    alternatives = _alternatives(shape)
    if alternatives is None:
        return Plan((Part((), (whole, whole), exclusion=exclusion),), {})
    parts = (tuple(probes[:MAX_PROBES]) for probes in alternatives)
    return Plan(
        tuple(
            Part(each, (whole,) * (len(each) + 2), split=True, exclusion=exclusion)
            for each in parts
        ),
        {},
    )


def _part(conditions: list[Expression], probes: list[Probe], exclusion: Test | None) -> Part:
    probes = probes[:MAX_PROBES]
    checks = [_unless_covered(conditions, probes[:depth]) for depth in range(len(probes) + 1)]
    return Part(tuple(probes), (*checks, checks[-1]), exclusion=exclusion)


def _unless_covered(conditions: list[Expression], probes: list[Probe]) -> Test | None:
    covered = {number for probe in probes for number in probe.covers}
    rest = [each for number, each in enumerate(conditions) if number not in covered]
    if len(rest) < 2:
        return condition(rest[0]) if rest else None
    return condition(And(tuple(rest)))


def _alternatives(node: Expression) -> list[list[Probe]] | None:
    """Probes such that one list of them holds wherever `node` does; None: there are none."""
    conditions = list(conjuncts(node))
    if probes := probes_of(conditions):
        return [probes]
    found = [_any_of(each) for each in conditions if isinstance(each, Or)]
    return min((each for each in found if each is not None), key=len, default=None)


def _any_of(node: Or) -> list[list[Probe]] | None:
    found: list[list[Probe]] = []
    for operand in node.operands:
        alternatives = _alternatives(operand)
        if alternatives is None:
            return None
        found += alternatives
    keys = sum(max(probe.keys for probe in probes) for probes in found)
    return found if len(found) <= MAX_ALTERNATIVES and keys <= MAX_KEYS else None
