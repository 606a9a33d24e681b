"""What came of the records of a lane: settles them, and counts what was delivered and how soon."""

from __future__ import annotations

import asyncio

from headgate.decide.delivery.parts import ref_of
from headgate.decide.delivery.settling import Outcome
from headgate.decide.operations.latencies import Stopwatch
from headgate.lane.holding import Holding
from headgate.lane.positions.grip import Grip
from headgate.lane.positions.saving import Saving
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef
from headgate.ports.machine import Machine


class Ledger:
    """Implements sink.Sink. `progress` is set whenever something was settled, so that there may be
    room for more."""

    def __init__(
        self,
        holding: Holding,
        saving: Saving,
        grip: Grip,
        *,
        machine: Machine,
    ) -> None:
        self._holding = holding
        self._saving = saving
        self._grip = grip
        self._wall_s = machine.wall_s
        self.progress = asyncio.Event()
        self.delivered = 0
        self.routing = Stopwatch()

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        partition = self._holding.partitions.get(ref_of(delivery))
        if partition is None:
            return  # the lane that has it now delivers it again
        if outcome == "acknowledged" and not delivery.lost_from:
            self.delivered += 1
            self.routing.took(self._wall_s() - delivery.time_ms / 1_000)
        self._saving.count(partition.settle(delivery.seq, outcome))
        self.progress.set()

    def overtaken(self, ref: PartitionRef, reason: str) -> None:
        self._grip.overtaken(ref, reason)
