"""Sets aside what one pipeline can't deliver now: a letter is made of it.

Invariant: it is handed to the writer of letters in the same breath as it leaves the memory of the
outbound, so a letter is never missed by who waits for those that were set aside so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from headgate.decide.delivery.parts import ref_of
from headgate.decide.delivery.steps import Aside
from headgate.lane.delivery.evidence import LaneEvidence
from headgate.lane.letters.writing import LetterWriter
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef

WRITTEN_IN_S = 0.2
"""How long a batch waits for the dead letters of what is older."""


class SettingAside:
    """`parked` and `dead` are counts."""

    def __init__(self, gateway_id: str, letters: LetterWriter, evidence: LaneEvidence) -> None:
        self._gateway_id = gateway_id
        self._letters = letters
        self._evidence = evidence
        self._dead_marks: dict[PartitionRef, int] = {}
        """Of each partition the last dead letter, among all letters of the gateway; those that are
        written may be missing."""
        self.parked = self.dead = 0

    def take(self, asides: Iterable[Aside]) -> None:
        for aside in asides:
            self._letters.add(self._gateway_id, aside)
            self._evidence.set_aside(self._gateway_id, aside)
            if aside.state == "dead":
                self.dead += 1
                self._dead_marks[ref_of(aside.delivery)] = self._letters.mark(self._gateway_id)
            else:
                self.parked += 1

    @property
    def may_owe(self) -> bool:
        """May there be dead letters that aren't written? If not, nobody has to ask of which."""
        return bool(self._dead_marks)

    def owed_before(self, batch: Iterable[Delivery]) -> AbstractSet[PartitionRef]:
        """The partitions in `batch` of which dead letters may have to be written before it goes."""
        return self._dead_marks.keys() & {ref_of(delivery) for delivery in batch}

    async def unwritten(self, refs: AbstractSet[PartitionRef]) -> AbstractSet[PartitionRef] | None:
        """None once the dead letters of all these are written; else, in a moment, those of which
        they aren't."""
        mark = max(self._dead_marks[ref] for ref in refs)
        is_written = await self._letters.written_within(WRITTEN_IN_S, self._gateway_id, mark)
        self._dead_marks = {
            ref: mark
            for ref, mark in self._dead_marks.items()
            if not self._letters.is_written(self._gateway_id, mark)
        }
        return None if is_written else refs & self._dead_marks.keys()
