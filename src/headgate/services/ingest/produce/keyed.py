"""Writes the requests of keyed topics: each event where its key belongs, here or at another node.

Invariants: the partition is computed here, under the version that this node serves; a request's
part for one partition is written whole or not at all, and every event has its own outcome. A part
that another node owns is handed on, a bounded number of times, or redirected when its sender routes
by itself (it named a version). What the store holds back (a partition that is being sealed, or is a
version ahead of us) is placed anew until the request's time is up; what was written before the
topic was repartitioned is not written again. A write without an answer within
the write timeout stays with its partition, and is read back there until the request's time is up.
Where the owner of a part is gone, the part is placed anew, with the ids it had, once the topology
names another one: by the node that the request came to, if its sender leaves the routing to us.
What may have been written somewhere is never told as "not written".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeGuard

from headgate import errors
from headgate.decide.produce.placement import split_keyed
from headgate.decide.produce.placing import PlacingRules
from headgate.model.api import ProduceResult
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Topic
from headgate.ports.log import Appended
from headgate.services.ingest.partitions import Partitions
from headgate.services.ingest.produce.appends import Appends, ending
from headgate.services.ingest.produce.former_keys import FormerKeys
from headgate.services.ingest.produce.handing_on import HandingOn, Incoming
from headgate.services.ingest.produce.outcomes import Outcome, placed, unknown_outcome
from headgate.tasks import Helpers

HOLD_S = 0.05
"""Between two tries of what the store holds back; a new topology ends it early."""
UNOWNED_S = 0.25
"""Between two tries of what has no owner that answers; likewise."""

Part = Sequence[int]
"""Indexes of the events of a request that belong to one partition."""


class Keyed:
    """Of `rules` it follows the write timeout, and the pauses between two reads back."""

    def __init__(
        self,
        partitions: Partitions,
        appends: Appends,
        handing_on: HandingOn,
        former_keys: FormerKeys,
        *,
        rules: PlacingRules,
    ) -> None:
        self._partitions = partitions
        self._appends = appends
        self._handing_on = handing_on
        self._former_keys = former_keys
        self._rules = rules

    async def write(self, request: int, incoming: Incoming) -> list[Outcome]:
        """One outcome per event, in the order of the request, by its deadline."""
        outcomes: dict[int, Outcome] = {}
        doubts: dict[int, errors.OutcomeUnknown] = {}
        pending: Part = range(len(incoming.events))
        while pending:
            topic = self._partitions.topic(incoming.topic)
            if incoming.version is not None and incoming.version < topic.version:
                outcomes |= dict.fromkeys(pending, self._partitions.redirect(topic))
                break
            async with Helpers() as asking:
                unwritten = await self._write_parts(
                    request, topic, incoming, pending, outcomes, asking
                )
            doubts |= {i: one for i in unwritten if _may_be_there(one := outcomes[i])}
            pending = [i for i in unwritten if _is_placed_anew(outcomes[i], incoming)]
            pause_s = HOLD_S if any(_is_held(outcomes[i]) for i in pending) else UNOWNED_S
            if not pending or self._partitions.closing or _left_s(incoming) <= pause_s:
                break  # a try that can't end in time leaves nothing but doubt
            await self._partitions.change(timeout_s=pause_s)
        for index in pending:
            outcomes[index] = _told(outcomes[index])
        for index, doubt in doubts.items():
            if isinstance(outcomes[index], errors.NotNow):
                outcomes[index] = doubt
        return [outcomes[index] for index in range(len(incoming.events))]

    async def _write_parts(
        self,
        request: int,
        topic: Topic,
        incoming: Incoming,
        pending: Part,
        outcomes: dict[int, Outcome],
        asking: Helpers,
    ) -> Part:
        """Put an outcome for each of `pending` into `outcomes`; which of them were not written."""
        offered, version, unwritten = incoming.events, topic.version, list[int]()
        parts: Mapping[int, Part] = split_keyed(offered, topic.partitions)
        if len(pending) < len(offered):
            again = set(pending)
            kept = {number: [i for i in part if i in again] for number, part in parts.items()}
            parts = {number: part for number, part in kept.items() if part}
        if topic.former:
            parts = await self._unknown(topic, incoming, parts, outcomes)
        events = {number: [offered[i] for i in part] for number, part in parts.items()}
        appends: dict[int, asyncio.Future[list[Appended]]] = {}
        asked: dict[int, asyncio.Future[list[Outcome]]] = {}
        for number, part in parts.items():
            ref = PartitionRef(topic.name, number)
            target = self._partitions.get(ref)
            if target is not None:
                appends[number] = self._appends.start(
                    request, target, events[number], version=version
                )
                continue
            where = self._elsewhere(topic, ref, incoming, events[number])
            if isinstance(where, errors.HeadgateError):
                outcomes |= dict.fromkeys(part, where)
                unwritten += part
            else:
                asked[number] = asking.start(where)
        # Waiting cancels no append: when the caller goes away or its time is up, they go on.
        timeout_s = min(self._rules.write_timeout_s, _left_s(incoming))
        await _ended([*appends.values(), *asked.values()], timeout_s=timeout_s)
        for number, append in appends.items():
            ref, part = PartitionRef(topic.name, number), parts[number]
            ended = ending(append)
            if ended == "unknown":
                reading = self._read_back(ref, append, events[number], incoming)
                asked[number] = asking.start(reading)
                continue
            outcomes |= zip(part, _answered(ref, append, events[number]), strict=True)
            if ended != "written":
                unwritten += part
        await _ended(asked.values(), timeout_s=_left_s(incoming))
        for number, task in asked.items():
            part = parts[number]
            told = task.result() if task.done() else [unknown_outcome(number)] * len(part)
            outcomes |= zip(part, told, strict=True)
            unwritten += part
        return unwritten

    async def _unknown(
        self,
        topic: Topic,
        incoming: Incoming,
        parts: Mapping[int, Part],
        outcomes: dict[int, Outcome],
    ) -> Mapping[int, Part]:
        """`parts` without the events that were written before the topic was repartitioned, which
        have their outcomes. The owner of each partition looks."""
        mine = {
            number: part
            for number, part in parts.items()
            if self._partitions.get(PartitionRef(topic.name, number)) is not None
        }
        timeout_s = min(self._rules.write_timeout_s, max(_left_s(incoming), 0))
        found = await self._former_keys.found(topic, incoming.events, mine, timeout_s=timeout_s)
        outcomes |= found
        left = {number: [i for i in part if i not in found] for number, part in parts.items()}
        return {number: part for number, part in left.items() if part}

    def _elsewhere(
        self, topic: Topic, ref: PartitionRef, incoming: Incoming, events: Sequence[Event]
    ) -> Coroutine[Any, Any, list[Outcome]] | errors.HeadgateError:
        """The way to the owner of `ref`, or why there is none."""
        url = self._partitions.peer_url(ref)
        if url and incoming.version is not None:
            return self._partitions.redirect(topic)
        if url and self._handing_on.may(incoming):
            # An owner that doesn't answer may be gone for good, and another node has the partition
            # by then.
            until_s = min(_left_s(incoming), self._rules.write_timeout_s)
            return self._handing_on.hand_on(
                url, incoming, events, partition=ref.partition, timeout_s=until_s
            )
        return errors.NotNow(
            f"partition {ref.partition} of {topic.name} has no owner here yet; try again",
            topic=topic.name,
            partition=ref.partition,
        )

    async def _read_back(
        self,
        ref: PartitionRef,
        append: asyncio.Future[list[Appended]],
        events: Sequence[Event],
        incoming: Incoming,
    ) -> list[Outcome]:
        """What became of a write that nobody has told us the end of, yet or ever."""
        tries = 0
        while (left_s := _left_s(incoming)) > 0:
            timeout_s = min(left_s, self._rules.write_timeout_s)
            seqs = await self._appends.find(ref, events, timeout_s=timeout_s)
            if ending(append) != "unknown":
                return _answered(ref, append, events)
            if seqs is not None:
                self._partitions.saw(ref, seqs.values())
                return [_read_outcome(ref, event, seqs, append) for event in events]
            if self._partitions.closing:
                break
            tries += 1
            pause_s = self._rules.health.set_aside_s(tries)
            await self._partitions.change(timeout_s=min(pause_s, max(_left_s(incoming), 0)))
        return [unknown_outcome(ref.partition)] * len(events)


async def _ended(futures: Collection[asyncio.Future[Any]], *, timeout_s: float) -> None:
    """Wait until all of `futures` have ended, or for `timeout_s`; cancels none of them.

    What asyncio.wait does, at half its price: every request comes by here.
    """
    pending = [future for future in futures if not future.done()]
    if not pending:
        return
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    left = len(pending)

    def count(_ended: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            end()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    for future in pending:
        future.add_done_callback(count)
    timer = loop.call_later(max(timeout_s, 0), end)
    try:
        await over
    finally:
        timer.cancel()
        for future in pending:
            future.remove_done_callback(count)


def _answered(
    ref: PartitionRef, append: asyncio.Future[list[Appended]], events: Sequence[Event]
) -> list[Outcome]:
    """The outcomes of an append of `events` that has told how it ended."""
    failure = append.exception()
    match failure:
        case None:
            return [*placed(ref, events, append.result())]
        case errors.Fenced():
            moved = errors.NotNow(
                f"partition {ref.partition} of {ref.topic} moved to another node; try again",
                topic=ref.topic,
                partition=ref.partition,
            )
            return [moved] * len(events)
    assert isinstance(failure, errors.HeadgateError)  # Any other end is unknown.
    return [failure] * len(events)


def _read_outcome(
    ref: PartitionRef, event: Event, seqs: Mapping[str, int], append: asyncio.Future[list[Appended]]
) -> Outcome:
    if event.event_id in seqs:
        return ProduceResult(event.event_id, ref.partition, seqs[event.event_id])
    crashed = append.done() and not append.cancelled()
    if crashed and not isinstance(append.exception(), errors.HeadgateError):
        return errors.HeadgateError("the write failed for a reason that is in the node's log")
    return errors.StorageFailed(
        f"the write to partition {ref.partition} of {ref.topic} failed; it was not written, "
        "try again",
        partition=ref.partition,
    )


def _is_held(outcome: Outcome) -> bool:
    """Whether it may be placed anew: a redirect of ours, which names the owners, may not."""
    if isinstance(outcome, errors.StaleVersion):
        return "owners" not in outcome.details
    return isinstance(outcome, errors.Sealed)


def _is_placed_anew(outcome: Outcome, incoming: Incoming) -> bool:
    """Whether this node tries the event again. A producer that routes, and a node that handed the
    request on, find the owner of a partition that has none by themselves."""
    if _is_held(outcome):
        return True
    is_ours = incoming.version is None and not incoming.hops
    is_ownerless = type(outcome) is errors.NotNow or isinstance(outcome, errors.PeerUnreachable)
    return is_ours and (is_ownerless or _may_be_there(outcome))


def _may_be_there(outcome: Outcome) -> TypeGuard[errors.OutcomeUnknown]:
    """Whether a node that it was handed on to gave no answer. With the same id it may be written
    again: the owner of the partition then knows what is there."""
    return isinstance(outcome, errors.OutcomeUnknown) and "url" in outcome.details


def _told(outcome: Outcome) -> Outcome:
    if isinstance(outcome, errors.StaleVersion) and _is_held(outcome):
        return errors.NotNow(
            "the topic was repartitioned and this node has not heard of it yet; nothing was "
            "written, try again"
        )
    return outcome


def _left_s(incoming: Incoming) -> float:
    return incoming.deadline_s - asyncio.get_running_loop().time()
