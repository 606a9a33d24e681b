"""Sends batches to one gateway, new deliveries and letters alike, and measures how long that takes.

A failure is told to the outbound here, and to the operators who wanted deliveries in it. Invariant:
a batch goes to the process that is known to be the gateway now, under the lane's fence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from operator import is_

import structlog

from headgate.decide.delivery.outbound import Outbound
from headgate.decide.operations.latencies import Stopwatch
from headgate.errors import CallerError, HeadgateError, NotNow
from headgate.lane.delivery.evidence import LaneEvidence
from headgate.lane.delivery.setting_aside import SettingAside
from headgate.lane.holding import Holding
from headgate.lane.letters.asked import Asked
from headgate.model.delivery import Delivery, DeliveryAnswer, DeliveryBatch
from headgate.model.event import PartitionRef
from headgate.ports.machine import Machine
from headgate.ports.transport import DeliveryTransport
from headgate.telemetry import LogLine

log = structlog.get_logger()

SLOWLY = 0.2
"""Weight of the last round trip in the average."""


class Sending:
    """`fence` is the lane's window and attempt; `sent` and `failures` are counts of batches."""

    def __init__(
        self,
        gateway_id: str,
        outbound: Outbound,
        asked: Asked,
        setting_aside: SettingAside,
        *,
        fence: tuple[int, int],
        transport: DeliveryTransport,
        holding: Holding,
        evidence: LaneEvidence,
        machine: Machine,
        timeout_s: float,
    ) -> None:
        self._gateway_id = gateway_id
        self._outbound = outbound
        self._asked = asked
        self._setting_aside = setting_aside
        self._window, self._attempt = fence
        self._transport = transport
        self._holding = holding
        self._evidence = evidence
        self._jitter = machine.jitter
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._prepared: DeliveryBatch | None = None
        """What is probably sent next."""
        self._waits_since_s: float | None = None
        self._round_trip_s = 0.0
        self.round_trips = Stopwatch()
        self.sent = self.failures = 0

    async def send(self, deliveries: list[Delivery]) -> DeliveryAnswer | None:
        """None where it failed, of which the outbound knows; raises CallerError where the gateway
        won't take them."""
        here = self._gateway_id
        try:
            answer = await self._send(deliveries)
        except CallerError as error:
            self._evidence.all_came_to("refused", here, deliveries, error.message)
            raise
        except HeadgateError as error:
            log.warning(LogLine.DELIVERY_FAILED, gateway=here, error=error.message)
            self._evidence.all_came_to("failed", here, deliveries, error.message)
            self.failures += 1
            now_s, jitter = self._loop.time(), self._jitter()
            failed = self._outbound.failed(error.message, now_s=now_s, jitter=jitter)
            self._setting_aside.take(failed.asides)
            self._asked.give_up(failed.given_up)
            return None
        self._evidence.answered(here, deliveries, answer.verdicts)
        return answer

    def drop(self, ref: PartitionRef) -> None:
        """The partition is another lane's: nothing of it is sent."""
        self._asked.give_up(self._outbound.drop(ref))

    def pace_s(self, now_s: float) -> float:
        """How long a batch takes: on average, or the one under way if that is longer."""
        waited_s = 0.0 if self._waits_since_s is None else now_s - self._waits_since_s
        return max(self._round_trip_s, waited_s)

    @contextlib.contextmanager
    def waits(self) -> Iterator[None]:
        """The next batch can't go on: it waits for the gateway, or for what comes before it."""
        self._waits_since_s = self._loop.time()
        try:
            yield
        finally:
            self._waits_since_s = None

    async def _send(self, deliveries: list[Delivery]) -> DeliveryAnswer:
        url = self._holding.around.urls.get(self._gateway_id)
        if url is None:
            raise NotNow(f"the address of gateway {self._gateway_id} isn't known")
        batch = self._batch(deliveries)
        self._waits_since_s = began_s = self._loop.time()
        try:
            answer = await self._transport.deliver(
                url,
                batch,
                timeout_s=self._timeout_s,
                meanwhile=partial(self._prepare_next, url),
            )
        except HeadgateError:
            raise
        except Exception as error:
            # Whatever it is, these deliveries are still owed.
            log.exception(LogLine.UNEXPECTED, gateway=self._gateway_id)
            raise NotNow(f"delivering to {self._gateway_id} failed: {error}") from error
        finally:
            self._waits_since_s = None
        took_s = self._loop.time() - began_s
        self._round_trip_s += SLOWLY * (took_s - self._round_trip_s)
        self.round_trips.took(took_s)
        self.sent += 1
        return answer

    def _batch(self, deliveries: list[Delivery]) -> DeliveryBatch:
        prepared, self._prepared = self._prepared, None
        process = self._holding.around.incarnations.get(self._gateway_id, "")
        if (
            prepared is not None
            and prepared.incarnation == process
            and _are_the_same(prepared.deliveries, deliveries)
        ):
            return prepared
        sender = self._gateway_id, self._window, self._attempt
        return DeliveryBatch(*sender, tuple(deliveries), process)

    def _prepare_next(self, url: str) -> None:
        """While a gateway is busy with a batch: make the next one ready, if it is full already."""
        here, upcoming = self._gateway_id, self._outbound.upcoming()
        wanted = [self._holding.wanted(delivery, here) for delivery in upcoming]
        sent = [delivery for delivery in wanted if delivery is not None]
        if sent:
            self._prepared = self._batch(sent)
            self._transport.prepare(url, self._prepared)


def _are_the_same(some: Sequence[Delivery], others: Sequence[Delivery]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
