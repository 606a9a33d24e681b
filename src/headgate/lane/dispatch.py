"""From matched records to acknowledged deliveries: one in-order pipeline per gateway.

What to do next is decided by decide.delivery.outbound; this carries it out, one step after the
other. A gateway that doesn't answer holds its own pipeline and nothing else.

A delivery leaves a pipeline in one of four ways: the gateway gave a verdict that settles it, it was
written down as a letter, every subscription it was meant for has ended or moved to another gateway
(which reads the log from the subscriber's position on), or its partition is somebody else's, who
delivers it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Protocol

import msgspec
import structlog

from headgate.decide.delivery.breaker import NEVER
from headgate.decide.delivery.outbound import DeliveryRules, Outbound, Redrive, Send, Wait, narrowed
from headgate.decide.latencies import Stopwatch
from headgate.decide.settling import Outcome
from headgate.errors import CallerError, HeadgateError, NotNow
from headgate.lane.letters import LetterWriter
from headgate.model.control import GatewayLink
from headgate.model.delivery import Delivery, DeliveryAnswer, DeliveryBatch, Verdict
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter
from headgate.ports.letters import LetterStore
from headgate.ports.transport import DeliveryTransport
from headgate.telemetry import LogEvent

log = structlog.get_logger()

OUTCOMES: dict[Verdict, Outcome] = {
    "accepted": "acknowledged",
    "duplicate": "acknowledged",
    "no_subscriber": "released",
}
SLOWLY = 0.2
"""Weight of the last round trip in the average."""


class Surroundings(Protocol):
    """What a pipeline asks the lane about the world as it is now."""

    def gateway_url(self, gateway_id: str) -> str | None:
        """Where the gateway takes deliveries; None while it isn't known."""

    def is_at(self, subscription_id: str, gateway_id: str) -> bool:
        """Is the subscription alive, and at that gateway?"""

    def low(self, subscriptions: Sequence[str]) -> Sequence[str]:
        """Those of low priority."""

    def refs(self) -> list[PartitionRef]:
        """The partitions that the lane has."""

    def epoch(self, ref: PartitionRef) -> int | None:
        """Under which epoch the lane delivers `ref`; None once it is somebody else's."""

    def settled(self, delivery: Delivery, outcome: Outcome) -> None: ...

    def overtaken(self, ref: PartitionRef, reason: str) -> None:
        """A gateway has seen a newer owner of `ref`."""


class GatewayPipeline:
    """Sends to one gateway, in order, one batch at a time.

    `fence` is the lane's window and attempt, `behind` what is parked for the gateway already.
    """

    def __init__(
        self,
        gateway_id: str,
        *,
        fence: tuple[int, int],
        rules: DeliveryRules,
        behind: frozenset[PartitionRef],
        transport: DeliveryTransport,
        store: LetterStore,
        letters: LetterWriter,
        surroundings: Surroundings,
        timeout_s: float,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.gateway_id = gateway_id
        self.outbound = Outbound(rules, behind)
        self._window, self._attempt = fence
        self._transport = transport
        self._store = store
        self._letters = letters
        self._surroundings = surroundings
        self._timeout_s = timeout_s
        self._jitter = jitter
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop = asyncio.get_running_loop()
        self._prepared: DeliveryBatch | None = None
        """What is probably sent next."""
        self._sent_at_s: float | None = None
        self._round_trip_s = 0.0
        self._round_trips = Stopwatch()
        self._sent = self._acknowledged = self._released = self._redriven = 0
        self._retries = self._failures = self._parked = self._dead = 0
        self.task = asyncio.create_task(self._run(), name=f"deliver to {gateway_id}")

    # --- from the lane ---------------------------------------------------------------------------

    def put(self, delivery: Delivery) -> None:
        outbound = self.outbound
        outbound.put(delivery, self._loop.time(), self._surroundings.low)
        if outbound.has_asides:
            self._set_aside()
        self._idle.clear()
        if outbound.stirred or not len(outbound):
            self._wake.set()

    def look_again(self) -> None:
        """Something has changed around it."""
        self._wake.set()

    def flush(self) -> None:
        """From now on send what waits at once."""
        self.outbound.flush()
        self._wake.set()

    async def drained(self) -> None:
        """Returns when nothing waits in memory; what is parked doesn't count."""
        await self._idle.wait()

    def pace_s(self, now_s: float) -> float:
        """How long a batch takes: on average, or the one under way if that is longer."""
        waited_s = 0.0 if self._sent_at_s is None else now_s - self._sent_at_s
        return max(self._round_trip_s, waited_s)

    def link(self) -> GatewayLink:
        outbound = self.outbound
        return GatewayLink(
            self.gateway_id,
            waiting=len(outbound),
            pressure=outbound.pressure.level,
            breaker=outbound.breaker.state,
            sent=self._sent,
            acknowledged=self._acknowledged,
            retries=self._retries,
            failures=self._failures,
            parked=self._parked,
            redriven=self._redriven,
            dead=self._dead,
            released=self._released,
            error=outbound.error,
            soft=outbound.pressure.soft,
            hard=outbound.pressure.hard,
            round_trips=self._round_trips.so_far(),
        )

    # --- the steps -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            step = self.outbound.next(self._loop.time())
            self._set_aside()
            match step:
                case Send(deliveries):
                    await self._deliver(deliveries)
                case Redrive(limit):
                    await self._redrive(limit)
                case Wait(until_s):
                    await self._until(until_s)

    async def _until(self, instant_s: float) -> None:
        if not len(self.outbound):
            self._idle.set()
        timer = None
        if instant_s < NEVER:
            timer = self._loop.call_at(instant_s, self._wake.set)
        await self._wake.wait()
        if timer is not None:
            timer.cancel()

    def _set_aside(self) -> None:
        for aside in self.outbound.take_asides():
            if aside.state == "dead":
                self._dead += 1
            else:
                self._parked += 1
            self._letters.add(self.gateway_id, aside)

    async def _deliver(self, batch: list[Delivery]) -> None:
        self._retries += self.outbound.attempts > 0
        wanted = [self._wanted(delivery) for delivery in batch]
        sent = [delivery for delivery in wanted if delivery is not None]
        answer = await self._attempt_to_send(sent)
        if answer is None:
            return
        answers = iter(answer.verdicts)
        verdicts: list[Verdict] = [
            "no_subscriber" if delivery is None else next(answers) for delivery in wanted
        ]
        self.outbound.answered(
            verdicts, fill=answer.fill, now_s=self._loop.time(), jitter=self._jitter()
        )
        for delivery, verdict in zip(batch, verdicts, strict=True):
            outcome = OUTCOMES.get(verdict)
            if outcome is not None:
                self._settle(delivery, outcome)
            elif verdict == "stale_fence":
                self._overtaken(delivery)

    async def _attempt_to_send(self, deliveries: list[Delivery]) -> DeliveryAnswer | None:
        """One attempt, of which the outbound knows when it came to nothing (None)."""
        if not deliveries:
            return DeliveryAnswer((), fill=self.outbound.pressure.fill)
        try:
            return await self._send(deliveries)
        except CallerError as error:
            log.error(LogEvent.DELIVERY_REJECTED, gateway=self.gateway_id, error=error.message)
            self._failures += 1
            self.outbound.refused(error.message)
        except HeadgateError as error:
            self._failed(error)
        return None

    def _failed(self, error: HeadgateError) -> None:
        log.warning(LogEvent.DELIVERY_FAILED, gateway=self.gateway_id, error=error.message)
        self._failures += 1
        self.outbound.failed(error.message, now_s=self._loop.time(), jitter=self._jitter())

    async def _send(self, deliveries: list[Delivery]) -> DeliveryAnswer:
        url = self._surroundings.gateway_url(self.gateway_id)
        if url is None:
            raise NotNow(f"nobody knows where gateway {self.gateway_id} is")
        batch = self._batch(deliveries)
        self._sent_at_s = began_s = self._loop.time()
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
            log.exception(LogEvent.UNEXPECTED, gateway=self.gateway_id)
            raise NotNow(f"delivering to {self.gateway_id} failed: {error}") from error
        finally:
            self._sent_at_s = None
        took_s = self._loop.time() - began_s
        self._round_trip_s += SLOWLY * (took_s - self._round_trip_s)
        self._round_trips.took(took_s)
        self._sent += 1
        return answer

    def _batch(self, deliveries: list[Delivery]) -> DeliveryBatch:
        prepared, self._prepared = self._prepared, None
        if prepared is not None and _are_the_same(prepared.deliveries, deliveries):
            return prepared
        return DeliveryBatch(self.gateway_id, self._window, self._attempt, tuple(deliveries))

    def _prepare_next(self, url: str) -> None:
        """While a gateway is busy with a batch: make the next one ready, if it is full already."""
        wanted = [self._wanted(delivery) for delivery in self.outbound.upcoming()]
        sent = [delivery for delivery in wanted if delivery is not None]
        if sent:
            self._prepared = self._batch(sent)
            self._transport.prepare(url, self._prepared)

    # --- parked letters --------------------------------------------------------------------------

    async def _redrive(self, limit: int) -> None:
        try:
            await self._redrive_some(limit)
        except HeadgateError as error:
            log.error(LogEvent.LETTERS_FAILED, gateway=self.gateway_id, error=error.message)
            self.outbound.postponed(self._loop.time())

    async def _redrive_some(self, limit: int) -> None:
        # What is still to be written may be older than what the store has.
        set_aside = self._parked
        await self._letters.written(self._letters.mark)
        refs = self._surroundings.refs()
        letters = await self._store.parked(self.gateway_id, refs, limit=limit)
        if not letters:
            if self._parked == set_aside:
                self.outbound.drained()
            return
        sending: list[tuple[Letter, Delivery]] = []
        unwanted: list[int] = []
        for letter in letters:
            delivery = letter.delivery
            epoch = self._surroundings.epoch(PartitionRef(delivery.topic, delivery.partition))
            if epoch is None:
                continue  # somebody else's, meanwhile
            wanted = self._wanted(delivery)
            if wanted is None:
                unwanted.append(letter.id)
            else:
                sending.append((letter, msgspec.structs.replace(wanted, epoch=epoch)))
        if unwanted:
            self._released += len(unwanted)
            await self._store.remove(unwanted)
        if sending:
            await self._send_letters(sending)

    async def _send_letters(self, letters: list[tuple[Letter, Delivery]]) -> None:
        outbound = self.outbound
        outbound.redriving()
        try:
            answer = await self._send([delivery for _, delivery in letters])
        except CallerError as error:
            if outbound.redrive_refused(len(letters)):
                await self._bury([letters[0][0]], error.message)
            return
        except HeadgateError as error:
            self._failed(error)
            return
        through, refused, again = [], [], False
        for (letter, delivery), verdict in zip(letters, answer.verdicts, strict=True):
            if verdict in OUTCOMES:
                through.append(letter.id)
            elif verdict == "rejected":
                refused.append(letter)
            elif verdict == "stale_fence":
                self._overtaken(delivery)
            else:
                again = True
        self._redriven += len(through)
        outbound.redriven(fill=answer.fill, again=again, now_s=self._loop.time())
        await self._store.remove(through)
        await self._bury(refused, "the gateway rejected it")

    async def _bury(self, letters: list[Letter], error: str) -> None:
        if not letters:
            return
        self._dead += len(letters)
        await self._store.bury(
            [letter.id for letter in letters],
            "rejected",
            attempts=letters[0].attempts + 1,
            error=error,
            now_ms=time.time_ns() // 1_000_000,
        )

    # --- parts -----------------------------------------------------------------------------------

    def _wanted(self, delivery: Delivery) -> Delivery | None:
        """The delivery for those of its subscriptions that are here; None when none is."""
        if delivery.lost_from:
            return delivery
        ref = PartitionRef(delivery.topic, delivery.partition)
        if self._surroundings.epoch(ref) is None:
            return None
        if delivery.broadcast and self._surroundings.gateway_url(self.gateway_id) is not None:
            return delivery  # who wants it there is for the gateway to say
        here = [
            name
            for name in delivery.subscriptions
            if self._surroundings.is_at(name, self.gateway_id)
        ]
        if here and len(here) == len(delivery.subscriptions):
            return delivery
        return narrowed(delivery, frozenset(here)) if here else None

    def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        if outcome == "acknowledged":
            self._acknowledged += 1
        else:
            self._released += 1
        self._surroundings.settled(delivery, outcome)

    def _overtaken(self, delivery: Delivery) -> None:
        ref = PartitionRef(delivery.topic, delivery.partition)
        self._surroundings.overtaken(
            ref, f"gateway {self.gateway_id} has seen a newer owner of {ref}"
        )


def _are_the_same(some: Sequence[Delivery], others: Sequence[Delivery]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
