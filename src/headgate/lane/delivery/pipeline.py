"""From matched records to acknowledged deliveries: one in-order pipeline per gateway.

What to do next is decided by decide.delivery.outbound; this carries it out, one step after the
other. A gateway that doesn't answer holds its own pipeline and nothing else. Parked letters are
looked for beside that, and sent in turn with what is live, which never waits for their store.

A delivery leaves a pipeline in one of four ways: the gateway gave a verdict that settles it, it was
written down as a letter, every subscription it was meant for has ended or moved to another gateway
(which reads the log from the subscriber's position on), or its partition is another lane's, which
delivers it. One that falls apart leaves so part by part.

Invariant: nothing is sent before every dead letter of something older of its partition is written.
A gateway that has a newer record would take the older one for a repeat, should this lane die before
the letter is there and the next one send it. Where a letter isn't written in a moment, its
partition is parked behind it, and the others go on.
"""

from __future__ import annotations

import asyncio

import structlog

from headgate.decide.delivery.breaker import NEVER
from headgate.decide.delivery.outbound import Outbound
from headgate.decide.delivery.parts import ref_of
from headgate.decide.delivery.rules import DeliveryRules
from headgate.decide.delivery.settling import Outcome
from headgate.decide.delivery.steps import Redrive, Send, SendAgain, Step, Wait
from headgate.errors import CallerError
from headgate.lane.delivery.evidence import LaneEvidence
from headgate.lane.delivery.sending import Sending
from headgate.lane.delivery.setting_aside import SettingAside
from headgate.lane.delivery.sink import Sink
from headgate.lane.holding import Holding
from headgate.lane.letters.asked import Asked
from headgate.lane.letters.redriving import Redriving
from headgate.lane.letters.writing import LetterWriter
from headgate.model.control.reports import GatewayLink
from headgate.model.delivery import Delivery, DeliveryAnswer, Verdict
from headgate.model.event import PartitionRef
from headgate.ports.letters import LetterStore
from headgate.ports.machine import Machine
from headgate.ports.transport import DeliveryTransport
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()

OUTCOMES: dict[Verdict, Outcome] = {
    "accepted": "acknowledged",
    "duplicate": "acknowledged",
    "no_subscriber": "released",
}


class GatewayPipeline:
    """Sends to one gateway, in order, one batch at a time.

    `fence` is the lane's window and attempt, `behind` what is parked for the gateway already. It
    runs in the lane's `crew`: should it break, the lane ends, and another one begins where it was.
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
        holding: Holding,
        sink: Sink,
        evidence: LaneEvidence,
        crew: Crew,
        machine: Machine,
        timeout_s: float,
    ) -> None:
        self.gateway_id = gateway_id
        self._rules = rules
        self._outbound = Outbound(rules, behind)
        self._holding = holding
        self._sink = sink
        self._evidence = evidence
        self._jitter = machine.jitter
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop = asyncio.get_running_loop()
        self._setting_aside = SettingAside(gateway_id, letters, evidence)
        self._acknowledged = self._released = self._retries = self._refusals = 0
        self._asked = Asked()
        self._sending = Sending(
            gateway_id,
            self._outbound,
            self._asked,
            self._setting_aside,
            fence=fence,
            transport=transport,
            holding=holding,
            evidence=evidence,
            machine=machine,
            timeout_s=timeout_s,
        )
        self._turn = asyncio.Lock()
        """The task that holds it may send, and tell the outbound the answer."""
        self._redrives: asyncio.Queue[Redrive] = asyncio.Queue()
        self._redriving = Redriving(
            gateway_id,
            self._outbound.parked,
            rules=rules,
            turn=self._turn,
            store=store,
            letters=letters,
            setting_aside=self._setting_aside,
            holding=holding,
            sink=sink,
            sending=self._sending,
            machine=machine,
            now_s=self._loop.time,
        )
        crew.need("delivery", self._run(), about=gateway_id)
        crew.need("redriving", self._redrive(), about=gateway_id)

    # --- from the lane ---------------------------------------------------------------------------

    def put(self, delivery: Delivery) -> int:
        """Returns in how many parts it goes on, each of which settles."""
        put = self._outbound.put(delivery, self._loop.time(), self._holding.low)
        if put.asides:
            self._setting_aside.take(put.asides)
        self._idle.clear()
        if put.stirs:
            self._wake.set()
        return put.parts

    async def send_again(self, delivery: Delivery) -> Verdict | None:
        """Deliver what an operator wants, once and outside the order; None without a verdict."""
        if not self._outbound.put_again(delivery, self._loop.time()):
            return None
        answer = self._asked.ask(delivery)
        self._wake.set()
        return await answer

    def drop(self, ref: PartitionRef) -> None:
        """The partition is another lane's."""
        self._sending.drop(ref)
        self._wake.set()

    def fall_behind(self, ref: PartitionRef) -> None:
        """Something that comes before what is next of `ref` is parked."""
        self._setting_aside.take(self._outbound.parked.fall_behind(ref))
        self._wake.set()

    def look_again(self, *, renewed: bool) -> None:
        """Something has changed around it: `renewed`, the gateway moved or started anew."""
        if renewed:
            self._outbound.renewed()
        self._wake.set()

    def be_wary(self, wary: bool) -> None:
        """Other lanes have given up on the gateway for now, or not any more."""
        self._outbound.be_wary(wary)

    def hurry(self, hurries: bool) -> None:
        """Nothing is to wait in memory for long, or for as long as it may."""
        self._outbound.hurry(hurries)
        self._wake.set()

    def flush(self) -> None:
        """From now on send what waits at once."""
        self._outbound.flush()
        self._wake.set()

    async def drained(self) -> None:
        """Returns when nothing waits in memory; what is parked doesn't count."""
        await self._idle.wait()

    @property
    def waiting(self) -> int:
        """What waits in memory, on its way included."""
        return len(self._outbound)

    @property
    def waiting_bytes(self) -> int:
        """Of the documents of that."""
        return self._outbound.size_bytes

    @property
    def struggles(self) -> bool:
        """Is something wrong with the gateway right now?"""
        return self._outbound.condition.struggles

    def is_behind(self, ref: PartitionRef) -> bool:
        """Is something of `ref` parked, or of partitions that come before it?"""
        return ref in self._outbound.parked.refs

    def outruns_letters(self, ref: PartitionRef) -> bool:
        """Is more parked of `ref` than sent, although its letters are on their way?"""
        return self._outbound.parked.outruns_letters(ref, self._loop.time())

    def halt_of(self, ref: PartitionRef) -> str:
        """Why `ref` stands still at a letter that is refused or damaged; empty where it doesn't."""
        return self._outbound.parked.halted.get(ref, "")

    def pace_s(self, now_s: float) -> float:
        """How long a batch takes: on average, or the one under way if that is longer."""
        return self._sending.pace_s(now_s)

    def link(self) -> GatewayLink:
        condition = self._outbound.condition
        return GatewayLink(
            self.gateway_id,
            waiting=len(self._outbound),
            pressure=condition.pressure.level,
            breaker=condition.breaker.state,
            sent=self._sending.sent,
            acknowledged=self._acknowledged,
            retries=self._retries,
            failures=self._refusals + self._sending.failures,
            parked=self._setting_aside.parked,
            redriven=self._redriving.counts.redriven,
            dead=self._setting_aside.dead + self._redriving.counts.dead,
            released=self._released + self._redriving.counts.released,
            error=condition.error,
            soft=condition.pressure.soft,
            hard=condition.pressure.hard,
            round_trips=self._sending.round_trips.so_far(),
        )

    # --- the steps -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            async with self._turn:
                step = await self._step()
            if isinstance(step, Wait):
                await self._until(step.until_s)

    async def _step(self) -> Step:
        step = self._outbound.next(self._loop.time())
        self._setting_aside.take(step.asides)
        if not len(self._outbound):
            self._idle.set()
        match step:
            case Send(deliveries):
                await self._deliver(deliveries)
            case SendAgain(deliveries):
                await self._deliver_again(deliveries)
            case Redrive():
                self._outbound.parked.begin()
                self._redrives.put_nowait(step)
        return step

    async def _redrive(self) -> None:
        while True:
            await self._redriving.redrive(await self._redrives.get())
            self._outbound.parked.end()
            self._wake.set()

    async def _until(self, instant_s: float) -> None:
        timer = None
        if instant_s < NEVER:
            timer = self._loop.call_at(instant_s, self._wake.set)
        await self._wake.wait()
        if timer is not None:
            timer.cancel()

    async def _deliver(self, batch: list[Delivery]) -> None:
        if self._setting_aside.may_owe and not await self._is_written_before(batch):
            return
        self._retries += self._outbound.attempts > 0
        here = self.gateway_id
        wanted = [self._holding.wanted(delivery, here) for delivery in batch]
        sent = [delivery for delivery in wanted if delivery is not None]
        answer = await self._attempt_to_send(sent)
        if answer is None:
            return
        if len(sent) < len(batch):
            gone = [one for one, left in zip(batch, wanted, strict=True) if left is None]
            self._evidence.all_came_to("released", here, gone)
        answers = iter(answer.verdicts)
        verdicts: list[Verdict] = [
            "no_subscriber" if delivery is None else next(answers) for delivery in wanted
        ]
        asides = self._outbound.answered(
            verdicts,
            fill=answer.fill,
            now_s=self._loop.time(),
            jitter=self._jitter(),
            unsent=len(batch) - len(sent),
        )
        self._setting_aside.take(asides)
        for delivery, verdict in zip(batch, verdicts, strict=True):
            outcome = OUTCOMES.get(verdict)
            if self._rules.is_left(delivery, verdict):
                continue  # its letter settles it
            if outcome is not None:
                self._settle(delivery, outcome)
            elif verdict == "stale_fence":
                self._overtaken(delivery)

    async def _is_written_before(self, batch: list[Delivery]) -> bool:
        """Whether nothing has to be written before the batch is sent, now or in a moment. If not,
        the outbound knows what can't be sent, and has another batch."""
        refs = self._setting_aside.owed_before(batch)
        if not refs:
            return True
        with self._sending.waits():
            unwritten = await self._setting_aside.unwritten(refs)
        if unwritten is None:
            return True
        self._setting_aside.take(self._outbound.unwritten(unwritten))
        return False

    async def _attempt_to_send(self, deliveries: list[Delivery]) -> DeliveryAnswer | None:
        """One attempt, of which the outbound knows when it came to nothing (None)."""
        if not deliveries:
            return DeliveryAnswer((), fill=self._outbound.condition.pressure.fill)
        try:
            return await self._sending.send(deliveries)
        except CallerError as error:
            log.error(LogLine.DELIVERY_REJECTED, gateway=self.gateway_id, error=error.message)
            self._refusals += 1
            asides = self._outbound.refused(error.message, now_s=self._loop.time())
            self._setting_aside.take(asides)
        return None

    # --- what an operator wants ------------------------------------------------------------------

    async def _deliver_again(self, batch: list[Delivery]) -> None:
        try:
            answer = await self._sending.send(batch)
        except CallerError:
            self._refusals += 1
            for delivery in self._outbound.again_refused(now_s=self._loop.time()):
                self._asked.answer(delivery, "rejected")
            return
        if answer is not None:
            self._outbound.sent_again(fill=answer.fill, now_s=self._loop.time())
            for delivery, verdict in zip(batch, answer.verdicts, strict=True):
                self._asked.answer(delivery, verdict)

    # --- parts -----------------------------------------------------------------------------------

    def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        if outcome == "acknowledged":
            self._acknowledged += 1
        else:
            self._released += 1
        self._sink.settled(delivery, outcome)

    def _overtaken(self, delivery: Delivery) -> None:
        ref = ref_of(delivery)
        self._sink.overtaken(ref, f"gateway {self.gateway_id} has seen a newer owner of {ref}")
