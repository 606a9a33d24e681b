"""One produce request from its body to its results.

Invariants: a request is answered by its deadline; what was routed under an older version is
redirected, never written where it no longer belongs; a client that has gone is not written for,
unless its events are on their way to the disk already.
"""

from __future__ import annotations

import asyncio
from typing import Any

from headgate import errors
from headgate.decide.produce.admission import ProduceLimits, admit, is_routed
from headgate.decide.produce.event_ids import ENTROPY_BYTES, event_id
from headgate.model.api import ProduceResult
from headgate.model.http import Request
from headgate.model.topology import Topic
from headgate.ports.machine import Machine
from headgate.services.ingest.partitions import Partitions
from headgate.services.ingest.produce.appends import Appends
from headgate.services.ingest.produce.handing_on import Incoming
from headgate.services.ingest.produce.keyed import Keyed
from headgate.services.ingest.produce.opportunistic import Opportunistic
from headgate.services.ingest.produce.outcomes import Outcome, results
from headgate.services.ingest.produce.peers import HOPS_HEADER

NEWS_TIMEOUT_S = 5.0
"""How long a request waits for the topology that its sender knows already."""


class Produce:
    def __init__(
        self,
        *,
        partitions: Partitions,
        appends: Appends,
        keyed: Keyed,
        opportunistic: Opportunistic,
        limits: ProduceLimits,
        machine: Machine,
    ) -> None:
        self._partitions = partitions
        self._appends = appends
        self._keyed = keyed
        self._opportunistic = opportunistic
        self._limits = limits
        self._wall_ms, self._entropy = machine.wall_ms, machine.entropy
        self._under_way: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._given_up = False

    def stop(self) -> None:
        """Refuse what is new, and let nobody wait for news."""
        self._stopping = True
        self._partitions.close()

    async def finish(self, *, timeout_s: float) -> None:
        """Let requests end; one whose write doesn't end in time is told that its outcome is
        unknown."""
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=timeout_s)
        self._given_up = True
        for task in self._under_way:
            task.cancel()

    async def handle(self, request: Request) -> list[ProduceResult]:
        """The results for a request that came over HTTP; cancelled when its client goes away."""
        self._check_running()
        name, hops = request.params["name"], _hops(request)
        with self._appends.room.arriving() as place:
            body = await request.body(self._limits.body_bytes, arrived=place.arrived)
            # Reading may take as long as the client likes; the node may be another by now.
            self._check_running()
            topic = await self._topic(name, body, hops)
            admitted = admit(body, topic, self._limits, new_id=self._new_id)
            size_bytes = len(body)
            del body  # the events have their own documents
        incoming = Incoming(
            topic.name,
            admitted.events,
            asyncio.get_running_loop().time() + admitted.timeout_ms / 1_000,
            version=admitted.version,
            hops=hops,
            ids_given=admitted.ids_given,
            again=admitted.again,
        )
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            return await self.write(incoming, size_bytes)
        except asyncio.CancelledError:
            if not self._given_up:
                raise
            task.uncancel()
            raise errors.OutcomeUnknown(
                "this ingest node stopped before the write ended, which may still succeed: "
                f"{errors.SAME_IDS_AGAIN}"
            ) from None
        finally:
            self._under_way.discard(task)

    async def _topic(self, name: str, body: bytes, hops: int) -> Topic:
        """Who routes by a topology that has the topic may be ahead of this node."""
        try:
            return self._partitions.topic(name)
        except errors.UnknownTopic:
            if not hops and not is_routed(body):
                raise
        topic = await self._partitions.heard_of(name, timeout_s=NEWS_TIMEOUT_S)
        self._check_running()
        return topic

    def _check_running(self) -> None:
        if self._stopping:
            raise errors.NotNow("this ingest node is stopping; try again")

    def _new_id(self) -> str:
        return event_id(self._wall_ms(), self._entropy(ENTROPY_BYTES))

    async def write(self, incoming: Incoming, size_bytes: int = 0) -> list[ProduceResult]:
        """One result per event, in the order of the request; raises when none was written.
        `size_bytes` is what all of them take until then."""
        number = self._appends.enter(len(incoming.events), size_bytes)
        try:
            topic = await self._caught_up(incoming)
            outcomes: list[Outcome]
            if topic.placement == "keyed":
                outcomes = await self._keyed.write(number, incoming)
            else:
                outcomes = await self._opportunistic.write(number, incoming)
        finally:
            self._appends.leave(number)
        return results(incoming.events, outcomes)

    async def _caught_up(self, incoming: Incoming) -> Topic:
        """The topic, once this node knows the version that the sender knows."""
        topic = self._partitions.topic(incoming.topic)
        if incoming.version is None or incoming.version <= topic.version:
            return topic
        loop = asyncio.get_running_loop()
        until_s = min(incoming.deadline_s, loop.time() + NEWS_TIMEOUT_S)
        while incoming.version > topic.version:
            self._check_running()
            left_s = until_s - loop.time()
            if left_s <= 0:
                raise errors.NotNow(
                    f"this node has not heard of version {incoming.version} of {topic.name} yet; "
                    "nothing was written, try again",
                    version=topic.version,
                )
            await self._partitions.change(timeout_s=left_s)
            topic = self._partitions.topic(incoming.topic)
        return topic


def _hops(request: Request) -> int:
    text = request.headers.get(HOPS_HEADER)
    # What is no small number can't be from a node of ours.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
