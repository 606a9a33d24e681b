"""Writes the requests of opportunistic topics: whole, to the partition that decide.placing chooses.

The decisions are made there; here they meet the store and the clock. Invariants: every append and
every read back that was asked for is reported exactly once; what is answered is what was decided;
where a request may have been written is remembered, so that a retry looks there first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from headgate import errors
from headgate.decide.placing import Answer, Append, Effect, Placing, PlacingRules, ReadBack
from headgate.decide.placing_memory import PlacingMemory
from headgate.model.api import ProduceResult
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended
from headgate.services.ingest.appends import Appends, WriteBounds, ending
from headgate.services.ingest.former_keys import FormerKeys
from headgate.services.ingest.handing_on import HandingOn, Incoming
from headgate.services.ingest.outcomes import Outcome, unknown_outcome
from headgate.services.ingest.partitions import Partitions
from headgate.services.ingest.settled import Settled
from headgate.tasks import Crew


@dataclass(slots=True)
class _Pending:
    """A request that has no answer yet; `places` grows as its events turn out to be on disk."""

    topic: str
    events: Sequence[Event]
    answered: asyncio.Future[Answer]
    ids_given: bool
    places: dict[str, ProduceResult] = field(default_factory=dict)
    refusal: BaseException | None = None

    def rest(self) -> list[Event]:
        return [event for event in self.events if event.event_id not in self.places]

    def found(self, partition: int, seqs: dict[str, int]) -> int:
        new = {
            one: ProduceResult(one, partition, seq)
            for one, seq in seqs.items()
            if one not in self.places
        }
        self.places |= new
        return len(new)


@dataclass(frozen=True, slots=True)
class _Timer:
    """The handle of uvloop doesn't know its time when that is past already."""

    at_s: float
    handle: asyncio.Handle


class Opportunistic:
    def __init__(
        self,
        partitions: Partitions,
        appends: Appends,
        settled: Settled,
        handing_on: HandingOn,
        former_keys: FormerKeys,
        *,
        rules: PlacingRules,
        bounds: WriteBounds,
        idempotency_ttl_s: float,
    ) -> None:
        self._partitions = partitions
        self._appends = appends
        self._settled = settled
        self._handing_on = handing_on
        self._former_keys = former_keys
        self._rules = rules
        self._ttl_s = idempotency_ttl_s
        self._placings: dict[str, Placing] = {}
        self._timers: dict[str, _Timer] = {}
        self._pending: dict[int, _Pending] = {}
        self._reads = Crew("ingest")
        self._doubts = PlacingMemory(ttl_s=idempotency_ttl_s, entries=bounds.remembered_events)
        self._done = PlacingMemory(ttl_s=idempotency_ttl_s, entries=bounds.remembered_requests)

    # --- requests --------------------------------------------------------------------------------

    async def write(self, request: int, incoming: Incoming) -> list[Outcome]:
        """One outcome per event, in the order of the request, by its deadline."""
        topic = self._partitions.topic(incoming.topic)
        if not self._partitions.of_topic(topic):
            return await self._elsewhere(incoming)
        await self._settled.read()
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        pending = _Pending(topic.name, incoming.events, answered, incoming.ids_given)
        doubts = self._where_it_may_be(incoming)
        away = [url for n in doubts if (url := self._partitions.peer_url(topic.refs()[n]))]
        if away and self._handing_on.may(incoming):
            return await self._handing_on.hand_on(away[0], incoming, incoming.events)
        if incoming.ids_given:
            await self._look_behind(pending, incoming, doubts)
        if not (rest := pending.rest()):
            return _outcomes(pending, Answer(request, "written"))
        self._pending[request] = pending
        self.refresh(topic.name)
        placing = self._placing(topic.name)
        self._run(
            topic.name,
            placing.offer(
                _now_s(),
                request,
                size=len(rest),
                deadline_s=incoming.deadline_s,
                doubts=tuple(sorted(doubts & self._partitions.of_topic(topic).keys())),
            ),
        )
        try:
            answer = await answered
        finally:
            # Cancelled: the caller has gone.
            if not answered.done() or answered.cancelled():
                self._run(topic.name, placing.abandon(_now_s(), request))
        return _outcomes(pending, answer)

    async def _elsewhere(self, incoming: Incoming) -> list[Outcome]:
        """No partition of the topic is here: another node has them, or nobody yet."""
        topic = self._partitions.topic(incoming.topic)
        urls = [url for ref in topic.refs() if (url := self._partitions.peer_url(ref))]
        if urls and incoming.version is not None:
            raise self._partitions.redirect(topic)
        if urls and self._handing_on.may(incoming):
            return await self._handing_on.hand_on(urls[0], incoming, incoming.events)
        raise errors.NotNow(
            f"no partition of {topic.name} has an owner here yet; try again", topic=topic.name
        )

    def _where_it_may_be(self, incoming: Incoming) -> frozenset[int]:
        """Partitions that an earlier attempt at this request may have reached."""
        now_s, ids = _now_s(), [event.event_id for event in incoming.events]
        places = self._doubts.partitions(now_s, incoming.topic, ids)
        places |= self._done.partitions(now_s, incoming.topic, ids[:1])
        count = self._partitions.topic(incoming.topic).partitions
        return frozenset(number for number in places if number < count)

    async def _look_behind(
        self, pending: _Pending, incoming: Incoming, doubts: frozenset[int]
    ) -> None:
        """Look for the events in what was there before this node, which has no memory of it, and
        in what the topic shrank by.

        A precaution against a retry that crosses either. A partition that can't tell is passed
        over: refusing everything because one disk is away would be worse.
        """
        topic = self._partitions.topic(incoming.topic)
        since_s = _now_s() - self._ttl_s
        found_there = [
            number
            for number, partition in self._partitions.of_topic(topic).items()
            if partition.found_head and partition.opened_s > since_s and number not in doubts
        ]
        timeout_s = min(self._rules.write_timeout_s, max(incoming.deadline_s - _now_s(), 0))
        finds = (
            self._appends.find(PartitionRef(topic.name, n), incoming.events, timeout_s=timeout_s)
            for n in found_there
        )
        for number, seqs in zip(found_there, await asyncio.gather(*finds), strict=True):
            pending.found(number, seqs or {})
        retired = await self._former_keys.retired(topic, incoming.events, timeout_s=timeout_s)
        for number, found in retired.items():
            pending.found(number, found)

    # --- effects ---------------------------------------------------------------------------------

    def _run(self, topic: str, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Append():
                    self._append(topic, effect)
                case ReadBack():
                    self._reads.start("read back", self._read_back(topic, effect), about=topic)
                case Answer():
                    self._answer(topic, effect)
        self._set_timer(topic)

    def _answer(self, topic: str, effect: Answer) -> None:
        pending = self._pending.pop(effect.request)
        if effect.verdict == "unknown" and effect.partition is not None:
            ids = [event.event_id for event in pending.rest()]
            self._doubts.remember(_now_s(), topic, ids, effect.partition)
        first = pending.places.get(pending.events[0].event_id)
        if pending.ids_given and first is not None and first.partition is not None:
            # The answer may get lost on its way, and the same request come again.
            self._done.remember(_now_s(), topic, [first.event_id], first.partition)
        if not pending.answered.done():
            pending.answered.set_result(effect)

    def _append(self, topic: str, effect: Append) -> None:
        events = self._pending[effect.request].rest()
        target = self._partitions.get(PartitionRef(topic, effect.partition))
        assert target is not None  # What is placed on was observed in the same step.
        task = self._appends.start(effect.request, target, events, version=target.version)
        task.add_done_callback(partial(self._on_append, topic, effect, events))

    def _on_append(
        self,
        topic: str,
        effect: Append,
        events: Sequence[Event],
        task: asyncio.Future[list[Appended]],
    ) -> None:
        pending = self._pending.get(effect.request)
        ended = ending(task)
        if ended == "written" and pending is not None:
            seqs = {e.event_id: a.seq for e, a in zip(events, task.result(), strict=True)}
            pending.found(effect.partition, seqs)
        if ended == "refused" and pending is not None:
            pending.refusal = task.exception()
        if ended in ("failed", "refused"):
            self._doubts.forget(topic, [event.event_id for event in events], effect.partition)
        self.refresh(topic)
        placing = self._placing(topic)
        report = {
            "written": placing.written,
            "failed": placing.failed,
            "unknown": placing.unknown,
            "refused": placing.refused,
        }[ended]
        self._run(topic, report(_now_s(), effect.request, effect.attempt, effect.partition))

    async def _read_back(self, topic: str, effect: ReadBack) -> None:
        pending = self._pending.get(effect.request)
        placing = self._placing(topic)
        if pending is None:
            return
        ref = PartitionRef(topic, effect.partition)
        timeout_s = self._rules.write_timeout_s
        seqs = await self._appends.find(ref, pending.rest(), timeout_s=timeout_s)
        if effect.request not in self._pending:
            return
        if seqs is None:
            self.refresh(topic)
            self._run(topic, placing.unreadable(_now_s(), effect.request, effect.attempt))
            return
        self._partitions.saw(ref, seqs.values())
        self.refresh(topic)
        found = pending.found(effect.partition, seqs)
        self._run(topic, placing.read(_now_s(), effect.request, effect.attempt, found))

    # --- time and change -------------------------------------------------------------------------

    def _placing(self, topic: str) -> Placing:
        if topic not in self._placings:
            self._placings[topic] = Placing(self._rules)
        return self._placings[topic]

    def refresh(self, topic: str) -> None:
        """Tell the decision what is open here now and how much waits there."""
        try:
            opened = self._partitions.of_topic(self._partitions.topic(topic))
        except errors.UnknownTopic:
            opened = {}
        settled = self._settled.known
        backlog = {
            number: max(0, partition.head - settled.get(partition.owner.ref, 0))
            for number, partition in opened.items()
        }
        self._run(topic, self._placing(topic).observe(_now_s(), backlog))

    def refresh_all(self) -> None:
        for topic in list(self._placings):
            self.refresh(topic)

    def _set_timer(self, topic: str) -> None:
        at_s = self._placing(topic).next_s
        timer = self._timers.get(topic)
        if timer is not None:
            if timer.at_s <= at_s:
                return  # It sets the next one itself.
            timer.handle.cancel()
            del self._timers[topic]
        if at_s < float("inf"):
            handle = asyncio.get_running_loop().call_at(at_s, self._tick, topic)
            self._timers[topic] = _Timer(at_s, handle)

    def _tick(self, topic: str) -> None:
        del self._timers[topic]
        self.refresh(topic)
        self._run(topic, self._placing(topic).tick(_now_s()))

    def stop(self, *, timeout_s: float) -> None:
        """Answer what waits; what is being written may take `timeout_s`."""
        for topic, placing in self._placings.items():
            self._run(topic, placing.stop(_now_s(), _now_s() + timeout_s))

    def close(self) -> None:
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()
        self._reads.cancel()


def _outcomes(pending: _Pending, answer: Answer) -> list[Outcome]:
    error = _error(pending, answer)
    return [pending.places.get(event.event_id, error) for event in pending.events]


def _error(pending: _Pending, answer: Answer) -> errors.HeadgateError:
    match answer.verdict:
        case "refused" if isinstance(pending.refusal, errors.HeadgateError):
            return pending.refusal
        case "unknown" if answer.partition is not None:
            return unknown_outcome(answer.partition)
        case "timeout":
            return errors.Timeout(
                f"no partition of {pending.topic} could be written to in time; nothing was "
                "written, try again",
                topic=pending.topic,
            )
        case "stopped":
            return errors.NotNow("this ingest node is stopping; nothing was written, try again")
        case "cancelled":
            return errors.PeerUnreachable("the client went away before its events were written")
    return errors.HeadgateError("the write failed for a reason that is in the node's log")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
