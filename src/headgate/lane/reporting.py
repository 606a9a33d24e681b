"""What a lane tells of itself: to the coordinator while it runs, to Spark when its window is over.

Looks at what the others count; nothing is counted here.
"""

from __future__ import annotations

from headgate.lane.delivery.ledger import Ledger
from headgate.lane.delivery.pipelines import Dispatcher
from headgate.lane.holding import Holding
from headgate.lane.positions.saving import Saving
from headgate.lane.reading import Reading
from headgate.lane.subscriptions.matching import Matching
from headgate.model.control.reports import LaneReport
from headgate.model.lanes import LaneSpec, LaneTally
from headgate.model.topology import Owner
from headgate.ports.machine import Machine


class Reporting:
    """Its times begin with it."""

    def __init__(
        self,
        spec: LaneSpec,
        *,
        holding: Holding,
        matching: Matching,
        reading: Reading,
        dispatcher: Dispatcher,
        ledger: Ledger,
        saving: Saving,
        machine: Machine,
    ) -> None:
        self._spec = spec
        self._holding = holding
        self._matching = matching
        self._reading = reading
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._saving = saving
        self._machine = machine
        self._started_s = machine.wall_s()
        self._cpu_before_s = machine.cpu_s()

    def report(self, *, unclaimed: tuple[Owner, ...] = ()) -> LaneReport:
        dispatcher, partitions = self._dispatcher, self._holding.partitions.values()
        return LaneReport(
            partitions=tuple(
                p.report(dispatcher.halt_of(p.ref), parked=dispatcher.is_behind(p.ref))
                for p in partitions
            ),
            read=self._reading.read,
            matched=self._reading.matched,
            delivered=self._ledger.delivered,
            filter_errors=self._matching.filter_errors,
            cpu_s=round(self._machine.cpu_s() - self._cpu_before_s, 3),
            links=dispatcher.links(),
            letters=dispatcher.error,
            gaps=self._reading.gaps,
            checkpoints=max((p.save_error for p in partitions), default=""),
            checkpoints_saved=self._saving.saves,
            checkpoint_errors=self._saving.errors,
            routing=self._ledger.routing.so_far(),
            saving=self._saving.took.so_far(),
            unclaimed=unclaimed,
        )

    def tally(self, reason: str) -> LaneTally:
        """`reason`: why the window, or the lane, has ended."""
        return LaneTally(
            lane=self._spec.lane,
            window=self._spec.window,
            pid=self._machine.pid(),
            reason=reason,
            fenced=not self._holding.partitions,
            read=self._reading.read,
            matched=self._reading.matched,
            delivered=self._ledger.delivered,
            started_s=self._started_s,
            ended_s=self._machine.wall_s(),
        )
