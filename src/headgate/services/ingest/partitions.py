"""The log partitions that this node owns, and every append to them.

Invariants: a partition is appended to only while the topology says it's ours, under the epoch it
was opened with; a request's part for one partition is written whole or not at all; a request whose
time is up learns whether its outcome is known. An append, once started, is never cancelled: nobody
could say what became of it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from headgate import errors
from headgate.decide.placement import place, split_keyed
from headgate.model.api import ErrorBody, ProduceResult
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Owner, Topic, Topology
from headgate.ports.log import Appended, LogWriter
from headgate.telemetry import LogEvent

log = structlog.get_logger()

SettledPositions = Callable[[], Awaitable[Mapping[PartitionRef, int]]]
Outcome = list[Appended] | errors.HeadgateError


@dataclass(slots=True)
class OpenPartition:
    """`placed` counts the events of appends that have no answer yet."""

    owner: Owner
    head: int
    placed: int = 0

    def waiting(self, settled: Mapping[PartitionRef, int]) -> int:
        return max(0, self.head - settled.get(self.owner.ref, 0)) + self.placed


@dataclass(frozen=True, slots=True)
class WriteBounds:
    """How much may wait for the disk at once; beyond it a request is told to come back.

    A partition with a write older than `write_timeout_s` is avoided where there is a choice.
    """

    requests: int = 1_024
    events: int = 200_000
    write_timeout_s: float = 3.0
    remembered_requests: int = 10_000


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """An append that has no answer yet, and the request it's a part of."""

    ref: PartitionRef
    request: int
    events: int
    started_s: float


class Partitions:
    def __init__(
        self,
        *,
        node_id: str,
        writer: LogWriter,
        settled: SettledPositions,
        now_ms: Callable[[], int],
        bounds: WriteBounds | None = None,
    ) -> None:
        self._node_id = node_id
        self._writer = writer
        self._settled = settled
        self._now_ms = now_ms
        self._bounds = bounds or WriteBounds()
        self._topology = Topology(generation=0)
        self._open: dict[PartitionRef, OpenPartition] = {}
        self._appends: dict[asyncio.Task[list[Appended]], _UnderWay] = {}
        self._requests: dict[int, int] = {}
        self._request_numbers = itertools.count()
        self._events_waiting = 0
        self._settled_known: Mapping[PartitionRef, int] = {}
        self._settled_read: asyncio.Task[Mapping[PartitionRef, int]] | None = None
        self._chosen: OrderedDict[tuple[str, str], int] = OrderedDict()

    # --- what is owned ---------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self._topology.generation

    def owns(self) -> tuple[Owner, ...]:
        return tuple(self._open[ref].owner for ref in sorted(self._open))

    def heads(self) -> tuple[tuple[PartitionRef, int], ...]:
        return tuple((ref, self._open[ref].head) for ref in sorted(self._open))

    def topic(self, name: str) -> Topic:
        topic = self._topology.topic(name)
        if topic is None:
            raise errors.UnknownTopic(
                f"there is no topic {name}: create it with `headgate topic create {name}`",
                topic=name,
            )
        return topic

    async def adopt(self, topology: Topology) -> bool:
        """Serve what `topology` gives to this node and nothing else; True once that is so.

        False means that a partition could not be opened or emptied; calling again tries again.
        """
        if topology.generation < self.generation:
            return True
        mine = {owner.ref: owner for owner in topology.logs if owner.node_id == self._node_id}
        leaving = [ref for ref in self._open if ref not in mine]
        self._topology = topology
        for ref in leaving:
            del self._open[ref]
        emptied = await self._drop([ref for ref in leaving if ref.topic in topology.deleted])
        opened = [await self._open_one(owner) for owner in mine.values() if self._is_news(owner)]
        return emptied and all(opened)

    def _is_news(self, owner: Owner) -> bool:
        known = self._open.get(owner.ref)
        return known is None or known.owner.epoch < owner.epoch

    async def _open_one(self, owner: Owner) -> bool:
        try:
            extent = await self._writer.open(owner.ref, epoch=owner.epoch)
        except errors.Fenced:
            # Somebody newer has it; the topology that says so is on its way.
            log.warning(LogEvent.FENCED, partition=str(owner.ref), epoch=owner.epoch)
            self._open.pop(owner.ref, None)
            return True
        except errors.HeadgateError as error:
            log.error(LogEvent.APPEND_FAILED, partition=str(owner.ref), reason=str(error))
            return False
        log.info(LogEvent.PARTITION_OPENED, partition=str(owner.ref), epoch=owner.epoch)
        self._open[owner.ref] = OpenPartition(owner, extent.head)
        return True

    async def drop_topics(self, stored: Iterable[PartitionRef]) -> bool:
        """Empty those partitions of `stored` whose topic was deleted while this node was away."""
        return await self._drop([ref for ref in stored if ref.topic in self._topology.deleted])

    async def _drop(self, refs: Sequence[PartitionRef]) -> bool:
        try:
            for ref in refs:
                await self._finished(ref)
                await self._writer.drop_records(ref)
        except errors.HeadgateError as error:
            log.error(LogEvent.APPEND_FAILED, reason=str(error))
            return False
        return True

    # --- writing ---------------------------------------------------------------------------------

    async def write(
        self, topic: Topic, events: Sequence[Event], *, timeout_s: float
    ) -> list[ProduceResult]:
        """One result per event, in the order of the request; raises when none was written."""
        if topic.placement == "keyed":
            parts = split_keyed(events, topic.partitions)
        else:
            parts = {await self._choose(topic, events): list(range(len(events)))}
        targets = {number: self._target(topic, number) for number in parts}
        self._check_room(len(events))
        request = next(self._request_numbers)
        tasks = {
            number: self._start(request, target, [events[i] for i in parts[number]], topic.version)
            for number, target in targets.items()
        }
        # Waiting cancels nothing: when the caller goes away or its time is up, appends go on.
        await asyncio.wait(tasks.values(), timeout=timeout_s)
        outcomes = {number: self._outcome(number, task) for number, task in tasks.items()}
        self._forget_failed_choice(topic, events, outcomes)
        return _results(events, parts, outcomes)

    def _target(self, topic: Topic, number: int) -> OpenPartition:
        target = self._open.get(PartitionRef(topic.name, number))
        if target is None:
            raise errors.NotNow(
                f"partition {number} of {topic.name} has no owner here yet; try again",
                topic=topic.name,
                partition=number,
            )
        return target

    def _check_room(self, events: int) -> None:
        full = len(self._requests) >= self._bounds.requests
        if full or self._events_waiting + events > self._bounds.events:
            raise errors.Overloaded(
                "too many requests wait for the disk; nothing was written, try again later",
                waiting_requests=len(self._requests),
                waiting_events=self._events_waiting,
            )

    def _start(
        self, request: int, target: OpenPartition, events: list[Event], version: int
    ) -> asyncio.Task[list[Appended]]:
        target.placed += len(events)
        self._events_waiting += len(events)
        self._requests[request] = self._requests.get(request, 0) + 1
        task = asyncio.create_task(self._append(target, events, version))
        started_s = asyncio.get_running_loop().time()
        self._appends[task] = _UnderWay(target.owner.ref, request, len(events), started_s)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[list[Appended]]) -> None:
        append = self._appends.pop(task)
        self._events_waiting -= append.events
        self._requests[append.request] -= 1
        if self._requests[append.request] == 0:
            del self._requests[append.request]
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, errors.HeadgateError):
            log.error(LogEvent.UNEXPECTED, partition=str(append.ref), exc_info=failure)

    async def _append(
        self, target: OpenPartition, events: list[Event], version: int
    ) -> list[Appended]:
        ref = target.owner.ref
        try:
            appended = await self._writer.append(
                ref, events, version=version, now_ms=self._now_ms()
            )
            target.head = max(target.head, *(one.seq for one in appended))
            return appended
        except errors.Fenced as error:
            if self._open.get(ref) is target:
                del self._open[ref]
            raise errors.NotNow(
                f"partition {ref.partition} of {ref.topic} moved to another node; try again",
                topic=ref.topic,
                partition=ref.partition,
            ) from error
        finally:
            target.placed -= len(events)

    @staticmethod
    def _outcome(number: int, task: asyncio.Task[list[Appended]]) -> Outcome:
        if not task.done():
            return errors.OutcomeUnknown(
                f"the write to partition {number} did not end in time and may still succeed: "
                "send the same event ids again to find out",
                partition=number,
            )
        if task.cancelled():
            return errors.NotNow("the node is stopping; try again", partition=number)
        failure = task.exception()
        if failure is None:
            return task.result()
        if isinstance(failure, errors.HeadgateError):
            return failure
        return errors.HeadgateError("the write failed for a reason that is in the node's log")

    # --- opportunistic placement -----------------------------------------------------------------

    async def _choose(self, topic: Topic, events: Sequence[Event]) -> int:
        """The partition for the whole request; a retry goes where its first attempt may be."""
        settled = await self._read_settled()
        candidates = {
            ref.partition: partition.waiting(settled)
            for ref in topic.refs()
            if (partition := self._open.get(ref)) is not None
        }
        if not candidates:
            raise errors.NotNow(f"no partition of {topic.name} has an owner here yet; try again")
        request = (topic.name, events[0].event_id)
        number = self._chosen.get(request, -1)
        if number not in candidates:
            stuck = self._stuck()
            healthy = {n: count for n, count in candidates.items() if n not in stuck[topic.name]}
            [number] = place([len(events)], healthy or candidates)
        self._chosen[request] = number
        if len(self._chosen) > self._bounds.remembered_requests:
            self._chosen.popitem(last=False)
        return number

    def _stuck(self) -> Mapping[str, set[int]]:
        """By topic, the partitions whose oldest append has run out of its write timeout."""
        before_s = asyncio.get_running_loop().time() - self._bounds.write_timeout_s
        stuck: defaultdict[str, set[int]] = defaultdict(set)
        for append in self._appends.values():  # In the order they started.
            if append.started_s > before_s:
                break
            stuck[append.ref.topic].add(append.ref.partition)
        return stuck

    def _forget_failed_choice(
        self, topic: Topic, events: Sequence[Event], outcomes: Mapping[int, Outcome]
    ) -> None:
        """What failed for sure may be placed elsewhere; what may have been written may not."""
        for outcome in outcomes.values():
            if isinstance(outcome, errors.StorageFailed):
                self._chosen.pop((topic.name, events[0].event_id), None)

    async def _read_settled(self) -> Mapping[PartitionRef, int]:
        """The stored positions; requests that come at the same time share one read."""
        if self._settled_read is None or self._settled_read.done():
            self._settled_read = asyncio.create_task(self._settled_now())
        return await asyncio.shield(self._settled_read)

    async def _settled_now(self) -> Mapping[PartitionRef, int]:
        try:
            self._settled_known = await self._settled()
        except errors.HeadgateError as error:
            # Old counts place a little worse; refusing to place would be worse still.
            log.warning(LogEvent.CHECKPOINT_FAILED, reason=str(error))
        return self._settled_known

    # --- the end ---------------------------------------------------------------------------------

    async def drain(self, *, timeout_s: float) -> bool:
        """Wait for every append under way; False when some are still there at the end."""
        if self._appends:
            await asyncio.wait(list(self._appends), timeout=timeout_s)
        return not self._appends

    async def _finished(self, ref: PartitionRef) -> None:
        under_way = [task for task, append in self._appends.items() if append.ref == ref]
        if under_way:
            await asyncio.wait(under_way)


def _results(
    events: Sequence[Event], parts: Mapping[int, list[int]], outcomes: Mapping[int, Outcome]
) -> list[ProduceResult]:
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
    if len(failures) == len(outcomes):
        # One error for all; "may have been written" must win over "nothing was written".
        raise next((f for f in failures if isinstance(f, errors.OutcomeUnknown)), failures[0])
    results = [ProduceResult(event_id=event.event_id) for event in events]
    for number, indexes in parts.items():
        outcome = outcomes[number]
        if isinstance(outcome, errors.HeadgateError):
            body = ErrorBody(outcome.code, outcome.message, dict(outcome.details))
            for index in indexes:
                results[index].error = body
            continue
        for index, appended in zip(indexes, outcome, strict=True):
            results[index].partition = number
            results[index].seq = appended.seq
    return results
