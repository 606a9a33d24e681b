"""Where a plan starts from: the nodes that take part, the partitions that each holds, and those
that have no place.

Invariant: every partition that may be moved is in exactly one place, with the one node that holds
it (`free`) or with nobody (`unowned`); a partition on the move is only counted (`fixed`), where it
goes. Everything is in one order that doesn't depend on how the caller kept it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from headgate.errors import InvalidRequest
from headgate.model.event import PartitionRef

WEIGHT_STEPS = 1_000
"""Weights count in thousandths, so that every comparison is one of whole numbers."""
WEIGHT_MIN = 1 / WEIGHT_STEPS
WEIGHT_MAX = 1_000.0
"""The weights that there are, wherever one is set, told or planned with."""

in_order = attrgetter("topic", "partition")
"""The order of partitions, as a sort key: several times faster than comparing the structs."""


class Candidate(msgspec.Struct, frozen=True):
    """A node that takes part in a plan.

    A node with twice the `weight` holds twice as much. One that is `draining` gives everything
    away and gets nothing.
    """

    node_id: str
    weight: float = 1.0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Participant:
    """A node that may hold partitions, and what it holds before the plan."""

    node_id: str
    weight: int
    """In thousandths."""
    fixed: list[PartitionRef] = field(default_factory=list)
    free: list[PartitionRef] = field(default_factory=list)

    @property
    def held(self) -> int:
        return len(self.fixed) + len(self.free)


@dataclass(frozen=True, slots=True)
class Standing:
    """`participants` by id, and in order the partitions that must find a place among them."""

    participants: tuple[Participant, ...]
    unowned: list[PartitionRef]

    def topic_sizes(self) -> Counter[str]:
        """How many partitions of each topic the participants will hold in all."""
        sizes = Counter(ref.topic for ref in self.unowned)
        for participant in self.participants:
            sizes.update(ref.topic for ref in participant.fixed)
            sizes.update(ref.topic for ref in participant.free)
        return sizes


def survey(
    partitions: Collection[PartitionRef],
    owners: Mapping[PartitionRef, str],
    nodes: Iterable[Candidate],
    moving: Collection[PartitionRef],
) -> Standing:
    """Sort out who holds what. A moving partition is never unowned, whatever became of its node:
    only the code that runs the move can say how it ends."""
    participants = {
        node.node_id: Participant(node.node_id, _whole_weight(node))
        for node in sorted(nodes, key=attrgetter("node_id"))
        if not node.draining
    }
    on_the_move = frozenset(moving)
    unowned = []
    for ref in sorted(set(partitions), key=in_order):
        participant = participants.get(owners.get(ref, ""))
        if ref in on_the_move:
            if participant is not None:
                participant.fixed.append(ref)
        elif participant is not None:
            participant.free.append(ref)
        else:
            unowned.append(ref)
    return Standing(tuple(participants.values()), unowned)


def is_weight(weight: float) -> bool:
    return WEIGHT_MIN <= weight <= WEIGHT_MAX


def _whole_weight(node: Candidate) -> int:
    if not is_weight(node.weight):
        raise InvalidRequest(
            f"Give node {node.node_id} a weight from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}, or "
            "drain it if it shall hold nothing.",
            node=node.node_id,
            weight=node.weight,
        )
    return round(node.weight * WEIGHT_STEPS)
