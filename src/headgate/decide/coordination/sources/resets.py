"""Where operators want positions to be, and how far that is.

A reset is releasing while a lane may still read the partition. Then the partition gets a new
epoch, and the reset is putting until the position is there under that epoch.

Invariants: a partition has one reset at a time, the newest; both phases are kept, so that the next
coordinator goes on with them. What is putting has no reader yet, so doing it twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.decide.lane.checkpoints import Reset
from headgate.model.event import PartitionRef
from headgate.model.stored import StoredReset


@dataclass(slots=True)
class Resets:
    releasing: dict[PartitionRef, tuple[Reset, int]] = field(default_factory=dict)
    """With the time since when."""
    putting: dict[PartitionRef, Reset] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: Iterable[StoredReset], now_ms: int) -> Resets:
        resets = cls()
        for one in stored:
            reset = Reset(one.settled, one.resync, one.only_forward)
            if one.is_released:
                resets.putting[one.ref] = reset
            else:
                resets.releasing[one.ref] = (reset, now_ms)
        return resets

    def begin(self, ref: PartitionRef, reset: Reset, now_ms: int) -> None:
        self.end(ref)
        self.releasing[ref] = (reset, now_ms)

    def released(self, ref: PartitionRef) -> None:
        """No lane whose settling counts reads the partition any more."""
        self.putting[ref], _ = self.releasing.pop(ref)

    def end(self, ref: PartitionRef) -> bool:
        """It is done, or not wanted any more; whether there was one."""
        releasing, putting = self.releasing.pop(ref, None), self.putting.pop(ref, None)
        return releasing is not None or putting is not None

    def __contains__(self, ref: PartitionRef) -> bool:
        return ref in self.releasing or ref in self.putting

    def wanted(self, refs: Iterable[PartitionRef]) -> dict[PartitionRef, Reset]:
        """Where those of `refs` are put that have no reader any more."""
        return {ref: self.putting[ref] for ref in refs if ref in self.putting}

    def all(self) -> tuple[StoredReset, ...]:
        wanted = {ref: reset for ref, (reset, _) in self.releasing.items()} | self.putting
        return tuple(
            StoredReset(ref, one.settled, one.resync, one.only_forward, ref in self.putting)
            for ref, one in sorted(wanted.items())
        )

    def forgive(self, absent_ms: int) -> None:
        for ref, (reset, since_ms) in self.releasing.items():
            self.releasing[ref] = (reset, since_ms + absent_ms)
