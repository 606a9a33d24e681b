"""Writes the requests of keyed topics: each event where its key belongs, whoever owns that.

Invariants: the partition is computed here, under the version that this node serves; a request's
part for one partition is written whole or not at all, and every event has its own outcome. A part
that another node owns is handed on, a bounded number of times, or redirected when its sender routes
by itself (it named a version). What the store holds back (a partition that is being sealed, or is a
version ahead of us) is placed anew until the request's time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from headgate import errors
from headgate.decide.placement import split_keyed
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Topic
from headgate.ports.log import Appended
from headgate.services.ingest.appends import Appends
from headgate.services.ingest.handing_on import HandingOn, Incoming
from headgate.services.ingest.outcomes import Outcome, Placed, unknown_outcome
from headgate.services.ingest.partitions import Partitions

HOLD_S = 0.05
"""Between two tries of what the store holds back; a new topology ends it early."""

READ_BACK_S = 0.5
"""Between two tries to learn what became of a write."""

Part = Sequence[int]
"""Indexes of the events of a request that belong to one partition."""


class Keyed:
    def __init__(self, partitions: Partitions, appends: Appends, handing_on: HandingOn) -> None:
        self._partitions = partitions
        self._appends = appends
        self._handing_on = handing_on

    async def write(self, request: int, incoming: Incoming) -> list[Outcome]:
        """One outcome per event, in the order of the request, by its deadline."""
        outcomes: dict[int, Outcome] = {}
        pending: Part = range(len(incoming.events))
        while pending:
            topic = self._partitions.topic(incoming.topic)
            if incoming.version is not None and incoming.version < topic.version:
                outcomes |= dict.fromkeys(pending, self._partitions.redirect(topic))
                break
            outcomes |= await self._write_parts(request, topic, incoming, pending)
            pending = [index for index in pending if _is_held(outcomes[index])]
            if not pending or self._partitions.closing or _left_s(incoming) <= 0:
                break
            await self._partitions.change(timeout_s=min(HOLD_S, max(_left_s(incoming), 0)))
        return [_told(outcomes[index]) for index in range(len(incoming.events))]

    async def _write_parts(
        self, request: int, topic: Topic, incoming: Incoming, pending: Part
    ) -> dict[int, Outcome]:
        split = split_keyed([incoming.events[index] for index in pending], topic.partitions)
        parts = {number: [pending[place] for place in places] for number, places in split.items()}
        outcomes: dict[int, Outcome] = {}
        local: dict[int, asyncio.Task[list[Appended]]] = {}
        remote: dict[int, asyncio.Task[list[Outcome]]] = {}
        for number, part in parts.items():
            ref = PartitionRef(topic.name, number)
            events = [incoming.events[index] for index in part]
            target = self._partitions.get(ref)
            if target is not None:
                local[number] = self._appends.start(request, target, events, version=topic.version)
                continue
            where = self._elsewhere(topic, ref, incoming, events)
            if isinstance(where, errors.HeadgateError):
                outcomes |= dict.fromkeys(part, where)
            else:
                remote[number] = asyncio.create_task(where)
        tasks = [*local.values(), *remote.values()]
        try:
            # Waiting cancels no append: when the caller goes away or its time is up, they go on.
            if tasks:
                await asyncio.wait(tasks, timeout=max(_left_s(incoming), 0))
            for number, task in local.items():
                events = [incoming.events[index] for index in parts[number]]
                told = await self._local_outcome(topic, number, task, events, incoming)
                outcomes |= dict(zip(parts[number], told, strict=True))
            for number, handed in remote.items():
                outcomes |= dict(
                    zip(parts[number], _remote_outcome(number, handed, parts[number]), strict=True)
                )
        finally:
            for handed in remote.values():
                handed.cancel()
        return outcomes

    def _elsewhere(
        self, topic: Topic, ref: PartitionRef, incoming: Incoming, events: Sequence[Event]
    ) -> Coroutine[Any, Any, list[Outcome]] | errors.HeadgateError:
        """The way to the owner of `ref`, or why there is none."""
        url = self._partitions.peer_url(ref)
        if url and incoming.version is not None:
            return self._partitions.redirect(topic)
        if url and self._handing_on.may(incoming):
            return self._handing_on.hand_on(url, incoming, events, partition=ref.partition)
        return errors.NotNow(
            f"partition {ref.partition} of {topic.name} has no owner here yet; try again",
            topic=topic.name,
            partition=ref.partition,
        )

    async def _local_outcome(
        self,
        topic: Topic,
        number: int,
        task: asyncio.Task[list[Appended]],
        events: Sequence[Event],
        incoming: Incoming,
    ) -> list[Outcome]:
        if not task.done():
            return [unknown_outcome(number)] * len(events)
        if task.cancelled():
            stopping = errors.NotNow("the node is stopping; try again", partition=number)
            return [stopping] * len(events)
        failure = task.exception()
        match failure:
            case None:
                return [Placed(number, appended.seq) for appended in task.result()]
            case errors.Fenced():
                moved = errors.NotNow(
                    f"partition {number} of {topic.name} moved to another node; try again",
                    topic=topic.name,
                    partition=number,
                )
                return [moved] * len(events)
            case errors.OutcomeUnknown():
                return await self._read_back(PartitionRef(topic.name, number), events, incoming)
            case errors.HeadgateError():
                return [failure] * len(events)
        crash = errors.HeadgateError("the write failed for a reason that is in the node's log")
        return [crash] * len(events)

    async def _read_back(
        self, ref: PartitionRef, events: Sequence[Event], incoming: Incoming
    ) -> list[Outcome]:
        """What became of a write that the store itself doesn't know the end of."""
        while (left_s := _left_s(incoming)) > 0:
            seqs = await self._appends.find(ref, events, timeout_s=left_s)
            if seqs is not None:
                self._partitions.saw(ref, seqs.values())
                return [_read_outcome(ref, event, seqs) for event in events]
            if self._partitions.closing:
                break
            await self._partitions.change(timeout_s=min(READ_BACK_S, max(_left_s(incoming), 0)))
        return [unknown_outcome(ref.partition)] * len(events)


def _read_outcome(ref: PartitionRef, event: Event, seqs: Mapping[str, int]) -> Outcome:
    if event.event_id in seqs:
        return Placed(ref.partition, seqs[event.event_id])
    return errors.StorageFailed(
        f"the write to partition {ref.partition} of {ref.topic} failed; it was not written, "
        "try again",
        partition=ref.partition,
    )


def _remote_outcome(
    number: int, task: asyncio.Task[list[Outcome]], part: Part
) -> Sequence[Outcome]:
    return task.result() if task.done() else [unknown_outcome(number)] * len(part)


def _is_held(outcome: Outcome) -> bool:
    """A redirect of ours names the owners and goes to the client; one of the store doesn't."""
    if isinstance(outcome, errors.StaleVersion):
        return "owners" not in outcome.details
    return isinstance(outcome, errors.Sealed)


def _told(outcome: Outcome) -> Outcome:
    if isinstance(outcome, errors.StaleVersion) and _is_held(outcome):
        return errors.NotNow(
            "the topic was repartitioned and this node has not heard of it yet; nothing was "
            "written, try again"
        )
    return outcome


def _left_s(incoming: Incoming) -> float:
    return incoming.deadline_s - asyncio.get_running_loop().time()
