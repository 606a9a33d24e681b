"""Writes the requests of opportunistic topics: whole, to the partition that decide.produce.placing
chooses.

The decisions are made there; here they meet the store and the clock. A request whose events have
ids is taken by the node that the first of them leads to, wherever it came in, and by another one
only if that isn't there. Invariants: every append and every read back that was asked for is
reported exactly once; what is answered is what was decided; an event that may be in the log, or on
its way there, isn't written again before that is known (see written_before.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from headgate import errors
from headgate.decide.produce.placing import Answer, Append, Effect, Placing, PlacingRules, ReadBack
from headgate.model.api import ProduceResult
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Topic
from headgate.ports.log import Appended
from headgate.services.ingest.partitions import Partitions
from headgate.services.ingest.produce.appends import Appends, ending
from headgate.services.ingest.produce.handing_on import MAX_HOPS, HandingOn, Incoming
from headgate.services.ingest.produce.homes import Homes
from headgate.services.ingest.produce.outcomes import Outcome, unknown_outcome
from headgate.services.ingest.produce.requests_in_hand import Hold, InHand
from headgate.services.ingest.produce.written_before import WrittenBefore
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
    hold: Hold | None = None
    """Until it is decided, even if its caller leaves before that."""

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
        homes: Homes,
        before: WrittenBefore,
        *,
        rules: PlacingRules,
    ) -> None:
        self._partitions = partitions
        self._appends = appends
        self._settled = settled
        self._handing_on = handing_on
        self._homes = homes
        self._before = before
        self._rules = rules
        self._placings: dict[str, Placing] = {}
        self._timers: dict[str, _Timer] = {}
        self._pending: dict[int, _Pending] = {}
        self._in_hand = InHand()
        self._reads = Crew("ingest")

    # --- requests --------------------------------------------------------------------------------

    async def write(self, request: int, incoming: Incoming) -> list[Outcome]:
        """One outcome per event, in the order of the request, by its deadline."""
        topic = self._partitions.topic(incoming.topic)
        if not self._partitions.of_topic(topic):
            return await self._elsewhere(incoming)
        home = self._home(topic, incoming)
        if home:
            outcomes = await self._handing_on.hand_on(home, incoming, incoming.events)
            if not all(map(_is_not_there, outcomes)):
                return outcomes
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        pending = _Pending(topic.name, incoming.events, answered, incoming.ids_given)
        if incoming.ids_given:
            pending.hold = await self._take_in_hand(incoming)
        try:
            return await self._write_here(request, pending, incoming, out_of_turn=home != "")
        finally:
            if request not in self._pending:
                self._let_go(pending)

    async def _write_here(
        self, request: int, pending: _Pending, incoming: Incoming, *, out_of_turn: bool
    ) -> list[Outcome]:
        await self._settled.read()
        topic = self._partitions.topic(incoming.topic)
        doubts: frozenset[int] = frozenset()
        if incoming.ids_given:
            doubts = self._before.doubts(topic, incoming.events)
            away = [url for n in doubts if (url := self._partitions.peer_url(topic.refs()[n]))]
            if away and self._handing_on.may(incoming):
                self._let_go(pending)  # It may come back here.
                return await self._handing_on.hand_on(away[0], incoming, incoming.events)
            await self._look_behind(pending, incoming, doubts, out_of_turn=out_of_turn)
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
            answer = await pending.answered
        finally:
            # Cancelled: the caller has gone.
            if not pending.answered.done() or pending.answered.cancelled():
                self._run(topic.name, placing.abandon(_now_s(), request))
        return _outcomes(pending, answer)

    def _home(self, topic: Topic, incoming: Incoming) -> str:
        """The address of the node that should take it, if that is another one. It is handed on for
        this reason once: two nodes that differ in whose turn it is would play ping-pong."""
        if not incoming.ids_given or incoming.hops:
            return ""
        return self._homes.elsewhere(topic, _first_id(incoming))

    async def _elsewhere(self, incoming: Incoming) -> list[Outcome]:
        """No partition of the topic is here: another node has them, or nobody yet."""
        topic = self._partitions.topic(incoming.topic)
        urls = [url for ref in topic.refs() if (url := self._partitions.peer_url(ref))]
        if urls and incoming.version is not None:
            raise self._partitions.redirect(topic)
        if urls and self._handing_on.may(incoming):
            url = self._homes.elsewhere(topic, _first_id(incoming)) or urls[0]
            return await self._handing_on.hand_on(url, incoming, incoming.events)
        raise errors.NotNow(
            f"no partition of {topic.name} has an owner here yet; try again", topic=topic.name
        )

    # --- what comes again ------------------------------------------------------------------------

    async def _take_in_hand(self, incoming: Incoming) -> Hold:
        """Once requests have ended that have some of the same events in hand."""
        ids = [event.event_id for event in incoming.events]
        if (hold := self._in_hand.take_now(incoming.topic, ids)) is not None:
            return hold
        try:
            async with asyncio.timeout_at(incoming.deadline_s):
                return await self._in_hand.take(incoming.topic, ids)
        except TimeoutError:
            raise errors.OutcomeUnknown(
                "an earlier request with some of these events has not ended yet: "
                f"{errors.SAME_IDS_AGAIN}",
                topic=incoming.topic,
            ) from None

    def _let_go(self, pending: _Pending) -> None:
        if pending.hold is not None:
            self._in_hand.let_go(pending.hold)

    async def _look_behind(
        self, pending: _Pending, incoming: Incoming, doubts: frozenset[int], *, out_of_turn: bool
    ) -> None:
        found = await self._before.find(
            self._partitions.topic(incoming.topic),
            incoming.events,
            besides=doubts,
            everywhere=out_of_turn or incoming.again or incoming.hops >= MAX_HOPS,
            timeout_s=min(self._rules.write_timeout_s, max(incoming.deadline_s - _now_s(), 0)),
        )
        for number, seqs in found.items():
            pending.found(number, seqs)

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
            self._before.unknown(topic, ids, effect.partition)
        if pending.ids_given:
            # The answer may get lost on its way, and the same request come again.
            self._before.written(topic, pending.places)
        self._let_go(pending)
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
            self._before.surely_not(topic, [one.event_id for one in events], effect.partition)
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
        self._homes.take_up()
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


def _first_id(incoming: Incoming) -> str:
    return incoming.events[0].event_id


def _is_not_there(outcome: Outcome) -> bool:
    """Nothing was written, by a node that isn't there or can't take anything."""
    return type(outcome) in (errors.PeerUnreachable, errors.NotNow)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
