"""What a lane remembers of its attempts to deliver, to explain why a record did or didn't arrive.

One ring for all lanes of a process, since windows are short and people ask later. The sender says
how a batch ended with one call, and pays for one append: the documents aren't kept. Invariant:
nothing is ever decided by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from headgate.decide.delivery.steps import Aside
from headgate.decide.explaining.ring import Ring
from headgate.model.delivery import Delivery, Verdict
from headgate.model.event import PartitionRef
from headgate.model.evidence import ATTEMPTS_TOLD, Attempt, Outcome
from headgate.ports.machine import Machine

STRETCHES_MAX = 16
"""Of each partition; a window has one, and what is older than evidence is kept isn't asked for."""
_Place = tuple[str, int, int, tuple[str, ...], int]
"""Topic, partition and seq of a record, the subscriptions it was for, and where it stands for lost
ones the first of those."""
_Entry = tuple[str, list[_Place], Sequence[Outcome], str]
"""The gateway, the records, the outcome of each (or one for all of them), and what went wrong."""


class LaneEvidence:
    """`size` counts records, and for each the subscriptions it was for; 0 keeps nothing."""

    def __init__(self, *, size: int, age_s: float, machine: Machine) -> None:
        self._now_ms = machine.wall_ms
        self._ring: Ring[_Entry] = Ring(
            capacity=size, age_ms=round(age_s * 1_000), began_ms=machine.wall_ms()
        )
        self._keeps = self._ring.keeps
        self._stretches: dict[PartitionRef, deque[tuple[int, int]]] = {}
        """What was read by lanes that have let go of a partition: behind the first seq, up to the
        second."""
        self._begun: dict[object, int] = {}
        """By who has a partition now, behind which seq they began to read."""

    # --- what is read ----------------------------------------------------------------------------

    def begins(self, holder: object, after_seq: int) -> None:
        """A lane of this process reads a partition from there on."""
        self._begun[holder] = after_seq

    def ends(self, holder: object, ref: PartitionRef, seq: int) -> None:
        """It has read up to there, and reads it no more. Its successor may have begun before."""
        after_seq = self._begun.pop(holder, seq)
        if after_seq < seq:
            kept = self._stretches.setdefault(ref, deque(maxlen=STRETCHES_MAX))
            kept.append((after_seq, seq))

    def has_read(self, ref: PartitionRef, seq: int, holder: object, read_seq: int) -> bool:
        """Whether a lane of this process has read the record; `holder`, if anybody, has the
        partition now and is at `read_seq`."""
        known = self._stretches.get(ref, ())
        present = self._begun.get(holder, read_seq), read_seq
        return any(after < seq <= up_to for after, up_to in (*known, present))

    # --- what came of it -------------------------------------------------------------------------

    def answered(
        self, gateway_id: str, deliveries: Sequence[Delivery], verdicts: Sequence[Verdict]
    ) -> None:
        """The gateway gave a verdict for each."""
        if self._keeps and deliveries:
            self._add(gateway_id, deliveries, verdicts, "")

    def all_came_to(
        self, outcome: Outcome, gateway_id: str, deliveries: Sequence[Delivery], error: str = ""
    ) -> None:
        """All of them came to the same."""
        if self._keeps and deliveries:
            self._add(gateway_id, deliveries, (outcome,), error)

    def set_aside(self, gateway_id: str, aside: Aside) -> None:
        """A letter is made of it."""
        why = f"{aside.reason}: {aside.error}" if aside.error else aside.reason
        self.all_came_to(aside.state, gateway_id, (aside.delivery,), why)

    def _add(
        self,
        gateway_id: str,
        deliveries: Sequence[Delivery],
        outcomes: Sequence[Outcome],
        error: str,
    ) -> None:
        places = [
            (one.topic, one.partition, one.seq, one.subscriptions, one.lost_from)
            for one in deliveries
        ]
        weight = len(places) + sum([len(place[3]) for place in places])
        self._ring.add((gateway_id, places, outcomes, error), weight, self._now_ms())

    # --- for those who ask -----------------------------------------------------------------------

    @property
    def since_ms(self) -> int:
        return self._ring.since_ms(self._now_ms())

    def attempts(self, ref: PartitionRef, seq: int) -> tuple[Attempt, ...]:
        """Those with this record, the oldest first; the last `ATTEMPTS_TOLD`."""
        self._ring.forget_old(self._now_ms())
        return tuple(self._found(ref, seq))[-ATTEMPTS_TOLD:]

    def _found(self, ref: PartitionRef, seq: int) -> Iterator[Attempt]:
        topic, partition = ref.topic, ref.partition
        for at_ms, (gateway_id, places, outcomes, error) in self._ring:
            for number, place in enumerate(places):
                if not (place[4] or place[2]) <= seq <= place[2]:
                    continue
                if place[1] == partition and place[0] == topic:
                    outcome = outcomes[number] if len(outcomes) == len(places) else outcomes[0]
                    if place[4] and outcome == "accepted":
                        outcome = "told"
                    yield Attempt(at_ms, gateway_id, outcome, place[3], error)
