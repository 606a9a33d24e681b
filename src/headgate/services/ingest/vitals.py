"""How an ingest node and its log partitions fare: what /health says.

It looks at heads and settled positions now and then, because how long something waits shows only
with time. A store of positions that is away holds nothing up.
"""

from __future__ import annotations

from headgate.decide.operations.health import DISCONNECTED, instant, judged, log_status
from headgate.decide.operations.partition_growth import LogPulse
from headgate.model.api import Health, PartitionVitals
from headgate.model.event import PartitionRef
from headgate.ports.machine import Machine
from headgate.release import release
from headgate.services.ingest.produce.writing import Writing
from headgate.services.ingest.settled import Settled
from headgate.tasks import deaths

UNAPPLIED = "a partition that it was given couldn't be opened yet; it is tried again, see its log"


class Vitals:
    """`look` is called about once a second."""

    def __init__(self, writing: Writing, settled: Settled, *, machine: Machine) -> None:
        self._partitions = writing.partitions
        self._settled = settled
        self._machine = machine
        self._started_s = machine.monotonic_s()
        self._pulses: dict[PartitionRef, LogPulse] = {}
        self.stopping = False

    async def look(self) -> None:
        heads = dict(self._partitions.heads())
        settled = await self._settled.read()
        now_ms = self._machine.wall_ms()
        self._pulses = {ref: self._pulses.get(ref) or LogPulse() for ref in heads}
        for ref, pulse in self._pulses.items():
            pulse.told(heads[ref], settled.get(ref, 0), now_ms)

    def health(self, *, connected: bool, unapplied: bool) -> Health:
        reasons = deaths.reasons() + ([] if connected else [DISCONNECTED])
        if unapplied:
            reasons.append(UNAPPLIED)
        if self._settled.error:
            reasons.append(f"positions can't be read, so lag may be wrong: {self._settled.error}")
        return judged(
            role="ingest",
            version=release(),
            uptime_s=self._machine.monotonic_s() - self._started_s,
            partitions=[self._vitals(ref) for ref in self._partitions.mine()],
            reasons=reasons,
            stopping=self.stopping,
        )

    def _vitals(self, ref: PartitionRef) -> PartitionVitals:
        pulse, now_ms = self._pulses.get(ref) or LogPulse(), self._machine.wall_ms()
        status, reason = log_status(
            is_open=self._partitions.is_well(ref), lag_ms=pulse.lag_ms(now_ms)
        )
        return PartitionVitals(
            id=ref.partition,
            topic=ref.topic,
            status=status,
            lag=pulse.lag,
            lag_ms=pulse.lag_ms(now_ms),
            event_rate=round(pulse.growth.per_s(now_ms), 1),
            last_event=instant(pulse.last_event_ms),
            reason=reason,
            lag_known=pulse.lag_known,
        )
