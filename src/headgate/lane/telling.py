"""What a lane says to explain a record: where it is with the partition, what was tried, and how it
stands with the gateways.

Looks at what the others know; nothing is changed by asking.
"""

from __future__ import annotations

import structlog

from headgate.lane.delivery.evidence import LaneEvidence
from headgate.lane.delivery.pipelines import Dispatcher
from headgate.lane.holding import Holding
from headgate.model.control.from_coordinator import AskEvidence
from headgate.model.control.to_coordinator import Evidence
from headgate.model.event import PartitionRef
from headgate.model.evidence import LaneAccount, WayThere
from headgate.model.lanes import LaneSettings
from headgate.telemetry import LogLine

log = structlog.get_logger()


class Telling:
    def __init__(
        self,
        settings: LaneSettings,
        evidence: LaneEvidence,
        *,
        holding: Holding,
        dispatcher: Dispatcher,
    ) -> None:
        self._settings = settings
        self._evidence = evidence
        self._holding = holding
        self._dispatcher = dispatcher

    def answer(self, asked: AskEvidence) -> Evidence:
        """Whatever goes wrong with it, the lane goes on."""
        try:
            return Evidence(asked.number, lane=self._account(asked.ref, asked.seq))
        except Exception:
            log.exception(LogLine.UNEXPECTED)
            return Evidence(asked.number)

    def _account(self, ref: PartitionRef, seq: int) -> LaneAccount:
        evidence, partition = self._evidence, self._holding.partitions.get(ref)
        since_ms, attempts = evidence.since_ms, evidence.attempts(ref, seq)
        read_it = evidence.has_read(
            ref, seq, partition, 0 if partition is None else partition.read.seq
        )
        if partition is None:
            return LaneAccount(since_ms, attempts, read_it=read_it, mode=self._settings.mode)
        waits_for = partition.order.awaits if partition.read.seq < seq else 0
        return LaneAccount(
            since_ms,
            attempts,
            holds=True,
            read_seq=partition.read.seq,
            settled=partition.settled,
            awaits=partition.is_awaited(seq),
            read_it=read_it,
            held_for=waits_for,
            reason=partition.reason or self._dispatcher.halt_of(ref) or self._dispatcher.error,
            mode=self._settings.mode,
            revision=self._holding.adopted.revision,
            ways=tuple(
                WayThere(
                    link.gateway_id,
                    link.waiting,
                    link.breaker,
                    link.pressure,
                    self._dispatcher.is_behind_at(ref, link.gateway_id),
                    link.error,
                )
                for link in self._dispatcher.links()
            ),
        )
