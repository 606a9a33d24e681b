"""Takes the batches that lanes deliver, event by event.

Invariant: a verdict that settles an event means that it waits here for its subscribers, or that the
log will be read up to it for them, or that nobody here wants it. Decided in one step, so the order
of a batch is the order of every queue. Before that, and in turns with all other work, it is found
out which subscriptions the broadcasts in it are for (subscriptions/broadcast.py).

A lane waits for its answer, so the answer goes first where that is possible: a batch of ordinary
events for subscribers that keep up (`_is_plain` says what that means) waits here as a whole, is
answered, and passed on right after; before, only its outline is read. Never more than one: what
waits is passed on before the next batch is looked at. Should a subscriber leave or fall behind in
between, that is as if the batch had come a moment later: its feed decides. An event of it that
turns out to have been here before, under another place, was told as accepted, which settles it like
any other verdict; it is counted as what it is. Should the rest turn out to be unreadable, whom it
is for has to come again, and reads the log.

An event that is in the log twice goes to a subscriber once, as far as events are remembered: from
where it was seen first, provided that the subscriber began before that place. What an operator
wants delivered again is redelivering.py's; what comes behind it in its batch and partition, or in a
later page of that, is put off for those for whom it was.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import structlog

from headgate import errors
from headgate.decide.delivery.gaps import is_marker
from headgate.decide.feed.feed import Delivered
from headgate.decide.feed.queue import ResyncReason
from headgate.decide.feed.recent_ids import Place, RecentIds
from headgate.decide.feed.redelivered import Redelivered
from headgate.model.delivery import (
    Batch,
    Delivery,
    DeliveryAnswer,
    DeliveryBatch,
    GoOn,
    Outline,
    Run,
    Verdict,
)
from headgate.model.event import Fence, PartitionRef
from headgate.model.event_message import event_part
from headgate.ports.machine import Machine
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.subscriptions.broadcast import Looking
from headgate.services.gateway.subscriptions.live import LiveSubscription, Waiting
from headgate.services.gateway.subscriptions.redelivering import Redelivering, Round
from headgate.services.gateway.subscriptions.subscriptions import Subscriptions
from headgate.services.gateway.wire import shared_part
from headgate.telemetry import LogLine

log = structlog.get_logger()

Job = Callable[[], None]
_ACCEPTED: tuple[Verdict, ...] = ("accepted",)


def after_the_answer(job: Job) -> None:
    """Two turns of the loop later: in the first one the answer is written."""
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, _after_you, job)


def _after_you(job: Job) -> None:
    """Who was woken by the answer often waits for this very processor, and would wait for the job:
    it goes first."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    job()


class Deliveries:
    """`recent` None: an event that is in the log twice is passed on twice. `later` does a job soon.
    `incarnation` is this process: a batch for another one, whose address this one has, is refused,
    since its subscriptions aren't known here."""

    def __init__(
        self,
        node_id: str,
        subscriptions: Subscriptions,
        *,
        incarnation: str,
        recent: RecentIds | None,
        redelivered: Redelivered,
        evidence: GatewayEvidence,
        machine: Machine,
        later: Callable[[Job], None] = after_the_answer,
    ) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._subscriptions = subscriptions
        self._get = subscriptions.get
        self._recent = recent
        self._redelivering = Redelivering(subscriptions, redelivered)
        self._evidence = evidence
        self._now_s = machine.monotonic_s
        self._later = later
        self._waiting: tuple[Batch, Outline] | None = None
        """One batch that is accepted and not yet passed on."""
        self.verdicts: Counter[Verdict] = Counter()
        self.repeats = 0
        self.stopping = False
        """Nothing more is taken: lanes keep it for the gateway that serves the subscribers next."""

    @property
    def remembered(self) -> int:
        """Events, and who has had which redelivery."""
        return len(self._recent or ()) + self._redelivering.remembered

    def take(self, batch: Batch) -> DeliveryAnswer | Awaitable[DeliveryAnswer]:
        """The answer to a batch: at once, unless it has broadcasts in it."""
        if isinstance(batch, DeliveryBatch) and any(one.broadcast for one in batch.deliveries):
            return self._looked_up(batch)
        return self.accept(batch)

    async def _looked_up(self, batch: DeliveryBatch) -> DeliveryAnswer:
        self._check(batch)
        with self._subscriptions.broadcasts.looking(batch) as looking:
            await looking.look()
            return self.accept(batch, looking)

    def accept(self, batch: Batch, looking: Looking | None = None) -> DeliveryAnswer:
        """`looking` has found out whom its broadcasts are for, if there are any."""
        self.pass_on()
        self._check(batch)
        self._subscriptions.heed_silence()
        outline = batch.outline
        if self.stopping:
            count = len(batch.deliveries if outline is None else outline)
            retry: list[Verdict] = ["retry"] * count
            self.verdicts.update(retry)
            return DeliveryAnswer(tuple(retry))
        go_on: tuple[GoOn, ...] = ()
        if outline is not None and self._is_plain(outline):
            self._waiting = batch, outline
            self._later(self.pass_on)
            verdicts = _ACCEPTED * len(outline)
            self.verdicts["accepted"] += len(verdicts)
            self._evidence.accepted(outline)
        else:
            verdicts, go_on = self._decided(batch, looking)
            self.verdicts.update(verdicts)
        budget = self._subscriptions.budget
        return DeliveryAnswer(
            verdicts,
            round(budget.taken_bytes / budget.limit_bytes, 3),
            go_on,
        )

    def _check(self, batch: Batch) -> None:
        """Raises NotFound or NotNow for a batch that is for another gateway."""
        if batch.gateway_id != self._node_id:
            raise errors.NotFound(
                f"this is gateway {self._node_id}, not {batch.gateway_id}",
                gateway_id=self._node_id,
            )
        if batch.incarnation not in ("", self._incarnation):
            raise errors.NotNow(
                f"this is another process of gateway {self._node_id} than the one it is for",
                gateway_id=self._node_id,
            )

    def pass_on(self) -> None:
        """Hand what was accepted to its subscribers."""
        if self._waiting is None:
            return
        (waiting, outline), self._waiting = self._waiting, None
        try:
            self._pass_on_all(waiting, outline)
        except Exception:
            # No lane sends this again: whom it is for has to come again, and read the log.
            log.exception(LogLine.UNEXPECTED)
            reason = errors.NotNow("something went wrong here; connect again")
            for name in outline.names():
                if (subscriber := self._get(name)) is not None:
                    subscriber.close(reason, ends_connection=True)

    def _pass_on_all(self, batch: Batch, outline: Outline) -> None:
        round_ = Round(self._now_s())
        messages = batch.messages
        if self._are_new(outline, batch.identities, round_.now_s):
            at = 0
            for run in outline.runs:
                end = at + len(run.seqs)
                for seq, message, name in self._write(run, messages[at:end]):
                    subscriber = self._get(name)
                    if subscriber is not None and subscriber.closing is None:
                        subscriber.deliver(run.partition, seq, message, since=0)
                        round_.touched[name] = subscriber
                at = end
        else:
            self.verdicts["accepted"] -= len(messages)
            each = zip(batch.deliveries, batch.identities, strict=True)
            self.verdicts.update([self._deliver(*one, round_) for one in each])
        self._wake(round_)

    def _are_new(self, outline: Outline, identities: Sequence[str], now_s: float) -> bool:
        """Whether none of these events was here before; then they are remembered."""
        if self._recent is None:
            return True
        self._recent.forget_old(now_s)
        if not self._recent.knows_none_of(outline.topic, identities):
            return False
        places = [(run.partition, run.seqs) for run in outline.runs]
        self._recent.remember(outline.topic, identities, places, now_s)
        return True

    def _wake(self, round_: Round) -> None:
        for subscriber in round_.touched.values():
            subscriber.ready()
            self._subscriptions.catch_up.wake(subscriber)

    # --- verdicts --------------------------------------------------------------------------------

    def _is_plain(self, outline: Outline) -> bool:
        """Whether all of a batch is settled for sure: each record behind the one before it, and for
        a subscriber that has nothing else waiting.

        This is what a lane waits for: see docs/benchmarks/deliver.md.
        """
        get, fences = self._get, self._subscriptions.fences
        last_seqs: dict[int, int] = {}
        senders: dict[PartitionRef, Fence] = {}
        for run in outline.runs:
            partition = run.partition
            ref = PartitionRef(outline.topic, partition)
            fence = Fence(run.epoch, outline.window, outline.attempt)
            if senders.setdefault(ref, fence) != fence or not fences.may_admit(ref, fence):
                return False
            if len(run.seqs) != len(run.subscriptions):
                return False
            last_seq = last_seqs.get(partition, 0)
            for seq in run.seqs:
                if seq <= last_seq:
                    return False
                last_seq = seq
            last_seqs[partition] = last_seq
            if not LiveSubscription.would_pass(run, get):
                return False
        for ref, fence in senders.items():
            fences.admit(ref, fence)
        return True

    def _decided(
        self, batch: Batch, looking: Looking | None
    ) -> tuple[tuple[Verdict, ...], tuple[GoOn, ...]]:
        round_ = Round(self._now_s())
        verdicts = tuple(self._verdicts(batch, round_, looking))
        self._evidence.answered(batch.deliveries, verdicts, round_.had)
        self._wake(round_)
        return verdicts, self._redelivering.ended(round_)

    def _verdicts(self, batch: Batch, round_: Round, looking: Looking | None) -> list[Verdict]:
        if self._recent is not None:
            self._recent.forget_old(round_.now_s)
        verdicts: list[Verdict] = []
        fences: dict[tuple[str, int], int] = {}
        """The epoch under which each partition's records were admitted last."""
        each = zip(batch.deliveries, batch.identities, strict=True)
        for number, (delivery, identity) in enumerate(each):
            where = (delivery.topic, delivery.partition)
            if fences.get(where) != delivery.epoch:
                fence = Fence(delivery.epoch, batch.window, batch.attempt)
                if not self._subscriptions.fences.admit(PartitionRef(*where), fence):
                    verdicts.append("stale_fence")
                    continue
                fences[where] = delivery.epoch
            round_.turns_to(delivery)
            if delivery.lost_from:
                verdict = self._lost(delivery, round_)
            else:
                addressed = delivery
                if delivery.broadcast:
                    assert looking is not None, "it is looked up before it is accepted"
                    addressed = looking.addressed(number)
                verdict = (
                    self._redelivering.take(addressed, round_)
                    if delivery.redelivery
                    else self._deliver(addressed, identity, round_)
                )
            verdicts.append(verdict)
        return verdicts

    def _deliver(self, delivery: Delivery, identity: str, round_: Round) -> Verdict:
        """What becomes of a record."""
        place = partition, seq = delivery.partition, delivery.seq
        sinces, left = delivery.since, delivery.left
        may_wait = bool(round_.put_off or delivery.from_seq)
        recent, get = self._recent, self._get
        first, is_late = None, False
        if recent is not None:
            first = recent.see(delivery.topic, identity, place, round_.now_s)
            if first is not None and first[0] == partition:
                # No producer's retry is twice in one partition. What a connector reads once more
                # is: left out it would be missing behind an older state that comes again, too.
                first = place
        subscriptions: Sequence[str] = delivery.subscriptions
        verdict: Verdict = "no_subscriber"
        as_event = as_left = b""
        if not left and not sinces and not may_wait and (first is None or first == place):
            as_event = event_part(delivery)
            run = Run(partition, delivery.epoch, (seq,), (delivery.subscriptions,))
            subscriptions = [name for _, _, name in self._write(run, (as_event,))]
            if len(subscriptions) < len(delivery.subscriptions):
                verdict = "accepted"
        for index, subscription_id in enumerate(subscriptions):
            subscriber = get(subscription_id)
            if subscriber is None or subscriber.closing is not None:
                continue
            if first is not None and first != place and _is_repeat(subscriber, first, place):
                self.repeats += 1
                self._evidence.repeated(subscription_id, delivery, first)
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
                continue
            if may_wait and round_.is_put_off(subscriber, delivery):
                is_late = True
                continue
            if left and subscription_id in left:
                shared = as_left = as_left or shared_part(delivery, "left")
            else:
                shared = as_event = as_event or event_part(delivery)
            since = sinces[index] if sinces and index < len(sinces) else 0
            outcome = subscriber.deliver(partition, seq, shared, since=since)
            if outcome is Delivered.DUPLICATE:
                round_.had.add((subscription_id, partition, seq))
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
            elif outcome is not Delivered.OVERFLOW:
                verdict = "accepted"
                round_.touched[subscriber.id] = subscriber
        if first is None and recent is not None and verdict != "accepted":
            recent.take_back()
        return "retry" if is_late else verdict

    def _write(self, run: Run, messages: Sequence[bytes]) -> list[Waiting]:
        """Write to every subscriber that has nothing else waiting; returns the messages of the
        others."""
        others = LiveSubscription.pass_through(run, messages, self._get)
        meant = sum([len(names) for names in run.subscriptions])
        self._subscriptions.totals.sent += meant - len(others)
        return others

    def _lost(self, delivery: Delivery, round_: Round) -> Verdict:
        """A gap: every subscriber of the topic that isn't past it hears of it, even if the lane
        doesn't know it any more. Such a subscriber reads from the log what the lane matched without
        it."""
        verdict: Verdict = "no_subscriber"
        is_late = False
        since = 0 if self._subscriptions.are_known else delivery.lost_from - 1
        reason: ResyncReason = "origin" if is_marker(delivery) else "gap"
        for subscriber in self._subscriptions:
            if subscriber.topic != delivery.topic or subscriber.closing is not None:
                continue
            if round_.is_put_off(subscriber, delivery):
                is_late = True
                continue
            outcome = subscriber.lost(
                delivery.partition, delivery.lost_from, delivery.seq, since=since, reason=reason
            )
            if outcome is Delivered.DUPLICATE:
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
            elif outcome is not Delivered.OVERFLOW:
                verdict = "accepted"
                round_.touched[subscriber.id] = subscriber
        return "retry" if is_late else verdict


def _is_repeat(subscriber: LiveSubscription, first: Place, place: Place) -> bool:
    """Whether the subscriber has had the event from the place where it was seen first. Of an
    ordered topic only within one version: those that follow each other ask which events the former
    ones had, so what is in both is there on purpose, too."""
    if not subscriber.covers(*first):
        return False
    return subscriber.version_of(*first) == subscriber.version_of(*place)
