"""Everything between a produce request and the log, put together once per node."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headgate.decide.produce.admission import ProduceLimits
from headgate.decide.produce.placing import PlacingRules
from headgate.ports.log import LogReader, LogWriter
from headgate.ports.machine import Machine
from headgate.services.ingest.partitions import Partitions
from headgate.services.ingest.produce.appends import Appends, WriteBounds
from headgate.services.ingest.produce.former_keys import FormerKeys
from headgate.services.ingest.produce.handing_on import HandingOn
from headgate.services.ingest.produce.homes import Homes
from headgate.services.ingest.produce.keyed import Keyed
from headgate.services.ingest.produce.opportunistic import Opportunistic
from headgate.services.ingest.produce.peers import ProducePeers
from headgate.services.ingest.produce.requests import Produce
from headgate.services.ingest.produce.written_before import WrittenBefore
from headgate.services.ingest.settled import Settled


@dataclass(frozen=True, slots=True)
class WritingOptions:
    """`idempotency_ttl_s` is how long an event id is remembered."""

    limits: ProduceLimits = field(default_factory=ProduceLimits)
    bounds: WriteBounds = field(default_factory=WriteBounds)
    placing: PlacingRules = field(default_factory=PlacingRules)
    idempotency_ttl_s: float = 30 * 60.0


class Writing:
    def __init__(
        self,
        options: WritingOptions,
        *,
        node_id: str,
        writer: LogWriter,
        reader: LogReader,
        settled: Settled,
        peers: ProducePeers,
        machine: Machine,
    ) -> None:
        self.appends = Appends(writer, machine=machine, bounds=options.bounds)
        self.partitions = Partitions(
            node_id=node_id,
            writer=writer,
            appends=self.appends,
            settled=settled,
            keys_kept_s=options.idempotency_ttl_s,
        )
        self.appends.on_store_changed = self.partitions.store_changed
        handing_on = HandingOn(peers)
        former_keys = FormerKeys(reader, ttl_s=options.idempotency_ttl_s)
        homes = Homes(self.partitions, node_id=node_id)
        before = WrittenBefore(
            self.partitions,
            self.appends,
            former_keys,
            homes,
            ttl_s=options.idempotency_ttl_s,
            entries=options.bounds.remembered_events,
        )
        self.opportunistic = Opportunistic(
            self.partitions,
            self.appends,
            settled,
            handing_on,
            homes,
            before,
            rules=options.placing,
        )
        self.partitions.on_change = self.opportunistic.refresh_all
        self.produce = Produce(
            partitions=self.partitions,
            appends=self.appends,
            keyed=Keyed(
                self.partitions,
                self.appends,
                handing_on,
                former_keys,
                rules=options.placing,
            ),
            opportunistic=self.opportunistic,
            limits=options.limits,
            machine=machine,
        )

    async def stop(self, *, timeout_s: float) -> bool:
        """Refuse what is new, answer what waits, finish what is being written.

        False when writes are still under way at the end; their callers are told that the outcome is
        unknown.
        """
        self.produce.stop()
        self.opportunistic.stop(timeout_s=timeout_s)
        _, drained = await asyncio.gather(
            self.produce.finish(timeout_s=timeout_s), self.appends.drain(timeout_s=timeout_s)
        )
        return drained

    def close(self) -> None:
        self.opportunistic.close()
