"""Which source partitions, or targets of consumer groups, are on their way, and how far they are.

A handoff is releasing while its donor owns the partition: the donor's lane stops reading, settles
what is in flight and saves the position. Then the partition is fenced: it changes hands under a new
epoch. From there it is starting, until a lane of the recipient reads it.

Invariant: a partition has one handoff at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from headgate.decide.coordination.sources.ownership import Ownership
from headgate.model.event import PartitionRef
from headgate.model.topology import Move

Phase = Literal["releasing", "starting"]


@dataclass(slots=True)
class Handoff:
    """`released_ms` is when the donor said that it has let go, `heard_ms` when it said that it
    needs more time, or had to be asked anew."""

    move: Move
    since_ms: int
    released_ms: int | None = None
    heard_ms: int = 0


@dataclass(slots=True)
class Handoffs:
    by_ref: dict[PartitionRef, Handoff] = field(default_factory=dict)

    @classmethod
    def of(cls, moves: Iterable[Move], now_ms: int) -> Handoffs:
        return cls({move.ref: Handoff(move, now_ms) for move in moves})

    def begin(self, move: Move, now_ms: int) -> None:
        self.by_ref[move.ref] = Handoff(move, now_ms)

    def end(self, refs: Iterable[PartitionRef]) -> None:
        for ref in refs:
            self.by_ref.pop(ref, None)

    def moves(self) -> tuple[Move, ...]:
        return tuple(self.by_ref[ref].move for ref in sorted(self.by_ref))

    def phase(self, ref: PartitionRef, sources: Ownership) -> Phase:
        handoff, owner = self.by_ref[ref], sources.owners.get(ref)
        is_with_donor = owner is not None and owner.node_id == handoff.move.from_id
        return "releasing" if is_with_donor else "starting"

    def releasing(self, sources: Ownership) -> list[Handoff]:
        return [h for ref, h in self.by_ref.items() if self.phase(ref, sources) == "releasing"]

    def forgive(self, absent_ms: int) -> None:
        for handoff in self.by_ref.values():
            handoff.since_ms += absent_ms
            handoff.heard_ms += absent_ms
