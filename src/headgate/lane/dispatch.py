"""From matched records to acknowledged deliveries: one in-order pipeline per gateway.

A gateway that doesn't answer holds its own pipeline and nothing else. A delivery leaves a pipeline
in one of three ways: the gateway gave a verdict that settles it, every subscription it was meant
for has ended, or its partition is somebody else's, who delivers it. Until then it is sent again, in
its order.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from headgate.decide.batching import BatchLimits
from headgate.decide.retrying import Backoff
from headgate.errors import CallerError, HeadgateError
from headgate.model.delivery import SETTLING_VERDICTS, Delivery, DeliveryBatch
from headgate.model.event import PartitionRef
from headgate.ports.transport import DeliveryTransport
from headgate.telemetry import LogEvent

log = structlog.get_logger()


class Surroundings(Protocol):
    """What a pipeline asks the lane about the world as it is now."""

    def gateway_url(self, gateway_id: str) -> str | None:
        """Where the gateway takes deliveries; None while it isn't known."""

    def is_live(self, subscription_id: str) -> bool: ...

    def holds(self, ref: PartitionRef) -> bool:
        """False once a partition is somebody else's: its deliveries are too."""

    def settled(self, delivery: Delivery, *, acknowledged: bool) -> None: ...

    def overtaken(self, ref: PartitionRef, reason: str) -> None:
        """A gateway has seen a newer owner of `ref`."""


class GatewayPipeline:
    """Sends to one gateway, in order, one batch at a time."""

    def __init__(
        self,
        gateway_id: str,
        fence: tuple[int, int],
        limits: BatchLimits,
        backoff: Backoff,
        transport: DeliveryTransport,
        surroundings: Surroundings,
        timeout_s: float,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._gateway_id = gateway_id
        self._window, self._attempt = fence
        self._limits = limits
        self._backoff = backoff
        self._transport = transport
        self._surroundings = surroundings
        self._timeout_s = timeout_s
        self._jitter = jitter
        self._waiting: deque[tuple[float, Delivery]] = deque()
        self._wake = asyncio.Event()
        self._last_sent_s = float("-inf")
        self._flushing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self._run(), name=f"pipeline-{gateway_id}")

    def put(self, delivery: Delivery) -> None:
        """Never blocks; the lane bounds what is unsettled, so it bounds this queue too."""
        self._waiting.append((self._loop.time(), delivery))
        self._idle.clear()
        if len(self._waiting) == 1 or len(self._waiting) == self._limits.max_size:
            self._wake.set()

    def flush(self) -> None:
        """From now on send what waits at once."""
        self._flushing = True
        self._wake.set()

    async def drained(self) -> None:
        await self._idle.wait()

    async def _run(self) -> None:
        while True:
            await self._until_due()
            self._last_sent_s = self._loop.time()
            size = min(len(self._waiting), self._limits.max_size)
            batch = [self._waiting.popleft()[1] for _ in range(size)]
            await self._deliver(batch)
            if not self._waiting:
                self._idle.set()

    async def _until_due(self) -> None:
        while True:
            self._wake.clear()
            if not self._waiting:
                await self._wake.wait()
                continue
            due_s = self._limits.send_at(
                waiting=len(self._waiting),
                first_at_s=self._waiting[0][0],
                last_sent_s=self._last_sent_s,
            )
            left_s = due_s - self._loop.time()
            if left_s <= 0 or self._flushing:
                return
            timer = self._loop.call_later(left_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    async def _deliver(self, batch: list[Delivery]) -> None:
        attempt = 0
        while batch:
            batch = self._released(batch)
            if not batch:
                return
            try:
                batch = await self._attempt_once(batch)
                if not batch:
                    return
            except CallerError as error:
                log.error(LogEvent.DELIVERY_REJECTED, gateway=self._gateway_id, error=error.message)
            except HeadgateError as error:
                log.warning(LogEvent.DELIVERY_FAILED, gateway=self._gateway_id, error=error.message)
            except Exception:
                # Whatever it is, these deliveries are still owed.
                log.exception(LogEvent.UNEXPECTED, gateway=self._gateway_id)
            await asyncio.sleep(self._backoff.delay_s(attempt, jitter=self._jitter()))
            attempt += 1

    def _released(self, batch: list[Delivery]) -> list[Delivery]:
        """Settle what nobody waits for any more, drop what is somebody else's, keep the rest."""
        kept = []
        for delivery in batch:
            if not self._surroundings.holds(PartitionRef(delivery.topic, delivery.partition)):
                continue
            if any(self._surroundings.is_live(s) for s in delivery.subscriptions):
                kept.append(delivery)
            else:
                self._surroundings.settled(delivery, acknowledged=False)
        return kept

    async def _attempt_once(self, batch: list[Delivery]) -> list[Delivery]:
        """One attempt; returns what must be sent again, from the first such delivery on."""
        url = self._surroundings.gateway_url(self._gateway_id)
        if url is None:
            return batch
        answer = await self._transport.deliver(
            url,
            DeliveryBatch(self._gateway_id, self._window, self._attempt, tuple(batch)),
            timeout_s=self._timeout_s,
        )
        again: list[Delivery] = []
        for delivery, verdict in zip(batch, answer.verdicts, strict=True):
            if verdict in SETTLING_VERDICTS:
                self._surroundings.settled(delivery, acknowledged=verdict != "no_subscriber")
            elif verdict == "stale_fence":
                ref = PartitionRef(delivery.topic, delivery.partition)
                self._surroundings.overtaken(
                    ref, f"gateway {self._gateway_id} has seen a newer owner of {ref}"
                )
            else:
                again.append(delivery)
        return again
