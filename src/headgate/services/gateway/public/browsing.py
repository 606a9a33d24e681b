"""Shows people what is in a topic: GET /v1/topics/{name}/records.

Reads the log like anybody and writes nothing, so nothing is consumed or moved by looking.
Invariants: a request reads and computes for no longer than it asked for and one read more; it holds
what it has been told to bring, and HELD_BYTES; AT_ONCE requests read at a time, however many there
are; subscribers have a turn after every few milliseconds of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from headgate import errors
from headgate.decide.access.deciding import enforced
from headgate.decide.access.showing import without_hidden
from headgate.decide.browsing import cursor as cursors
from headgate.decide.browsing.cursor import BrowseCursor
from headgate.decide.browsing.merging import BrowseRead, Item, Merge, size_bytes
from headgate.decide.browsing.places import partitions_of, places, resumed
from headgate.decide.browsing.question import PARAMETERS, BrowseQuestion, question_of
from headgate.decide.browsing.showing import Masks, Wanted, described
from headgate.decide.feed.start_positions import Since
from headgate.decide.filter.plan import Filter, compile_filter
from headgate.decide.pacing import Pace
from headgate.decide.produce.unknown_topic import check_heard, unknown_topic
from headgate.model.browse_api import (
    SCANNED_MAX,
    BrowseAnswer,
    BrowsedPartition,
    BrowsedRecord,
    BrowseStop,
    MissingRecords,
)
from headgate.model.event import PartitionRef, Record
from headgate.model.http import Parameter, Request, Response, Route, json_response
from headgate.model.topology import Topic, Topology
from headgate.ports.log import Extent, LogReader
from headgate.ports.machine import Machine

AT_ONCE = 2
WAITING_MAX = 32
"""More requests than these are refused."""
WAIT_S = 10.0
HELD_BYTES = 32 * 1024 * 1024


class Browsing:
    """`topology` is what the gateway knows now; `masked` are the paths that `ui.mask` names."""

    def __init__(
        self,
        reader: LogReader,
        *,
        topology: Callable[[], Topology],
        machine: Machine,
        masked: Sequence[str] = (),
    ) -> None:
        self._reader = reader
        self._topology = topology
        self._machine = machine
        self._masks = Masks(masked)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    def table(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/topics/{name}/records",
                self._answer,
                "Look at the records of a topic; nothing is consumed or moved.",
                response=BrowseAnswer,
                parameters=tuple(Parameter(name, text) for name, text in PARAMETERS.items()),
            )
        ]

    async def _answer(self, request: Request) -> Response:
        name = request.params["name"]
        question = question_of(request.query, topic=name)
        limit = enforced(request.principal, "subscribe", topic=name)
        allowed = None if limit is None else limit.filter
        wanted = Wanted(compile_filter(question.where), question.key, question.collection)
        topology = self._topology()
        check_heard(topology)
        topic = topology.topic(name)
        if topic is None:
            known = [one.name for one in topology.topics]
            raise unknown_topic(name, known, is_wanted=False)
        async with self._turn():
            return json_response(await self._browse(topic, question, wanted, allowed))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._waiting >= WAITING_MAX:
            raise _busy()
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_S):
                await self._turns.acquire()
        except TimeoutError as error:
            raise _busy() from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    async def _browse(
        self, topic: Topic, asked: BrowseQuestion, wanted: Wanted, allowed: Filter | None
    ) -> BrowseAnswer:
        until_s = self._machine.monotonic_s() + asked.timeout_ms / 1000
        stretches = await self._stretches(topic, asked)
        is_forward = asked.direction == "forward"
        cursor = asked.cursor
        if cursor is not None:
            at = resumed(cursor, stretches)
        else:
            at = await self._begin(topic, asked, stretches)
        ends = {p: there.head if is_forward else there.earliest for p, there in stretches.items()}
        merge = Merge(at, ends, asked.direction, turn=cursor.turn if cursor is not None else 0)
        look = _Look(self._reader, self._machine, self._masks, wanted, asked, topic.name, allowed)
        stopped = await look.through(merge, until_s=until_s)
        return BrowseAnswer(
            topic.name,
            asked.direction,
            look.records,
            look.missing,
            [BrowsedPartition(p, one.earliest, one.head) for p, one in sorted(stretches.items())],
            cursors.written(BrowseCursor(topic.name, asked.direction, merge.at, merge.turn)),
            more=merge.has_more,
            stopped=stopped,
            scanned=look.scanned,
            filter_errors=look.filter_errors,
        )

    async def _stretches(self, topic: Topic, asked: BrowseQuestion) -> dict[int, Extent]:
        every = [ref.partition for ref in topic.all_refs()]
        chosen = partitions_of(topic, key=asked.key, collection=asked.collection)
        if asked.partition is not None:
            if asked.partition not in every:
                raise errors.InvalidRequest(
                    f"topic {topic.name} has no partition {asked.partition}: it has 0 to "
                    f"{len(every) - 1}",
                    parameter="partition",
                )
            chosen = [asked.partition] if asked.partition in chosen else []
        return {p: await self._reader.extent(PartitionRef(topic.name, p)) for p in chosen}

    async def _begin(
        self, topic: Topic, asked: BrowseQuestion, stretches: dict[int, Extent]
    ) -> dict[int, int]:
        start = asked.start
        if isinstance(start, Since):
            start = {
                p: await self._reader.first_since(PartitionRef(topic.name, p), start.time_ms)
                for p in stretches
            }
        elif isinstance(start, dict) and len(stretches) < len(topic.all_refs()):
            # Only some partitions are looked at: the others' positions mean nothing here.
            start = {p: seq for p, seq in start.items() if p in stretches}
        return places(start, stretches, topic.name, asked.direction)


class _Look:
    """One request's way through the records."""

    def __init__(
        self,
        reader: LogReader,
        machine: Machine,
        masks: Masks,
        wanted: Wanted,
        asked: BrowseQuestion,
        topic: str,
        allowed: Filter | None,
    ) -> None:
        self._allowed = allowed
        self._reader = reader
        self._now_s = machine.monotonic_s
        self._masks = masks
        self._wanted = wanted
        self._asked = asked
        self._topic = topic
        self._bytes = 0
        self.records: list[BrowsedRecord] = []
        self.missing: list[MissingRecords] = []
        self.scanned = 0
        self.filter_errors = 0

    async def through(self, merge: Merge, *, until_s: float) -> BrowseStop:
        """Until there is enough, or nothing more."""
        pace = Pace(self._now_s)
        pace.begin()
        while merge.has_more:
            is_late = self._now_s() >= until_s
            read = merge.next_read()
            if read is None:
                if stopped := self._enough(is_late=is_late):
                    return stopped
                item = merge.pop()
                if item is None:  # What is left wasn't come to: the next request begins with it.
                    return "timeout" if is_late else "max_bytes"
                self._take(item)
            elif not (is_late or merge.buffered_bytes >= HELD_BYTES):
                await self._read(merge, read)
            elif self._has_begun:
                return "timeout" if is_late else "max_bytes"
            elif not merge.leave_out():
                await self._read(merge, read)
            if pace.is_over():
                await asyncio.sleep(0)
                pace.begin()
        return "end"

    @property
    def _has_begun(self) -> bool:
        return self.scanned > 0 or bool(self.missing)

    async def _read(self, merge: Merge, read: BrowseRead) -> None:
        ref = PartitionRef(self._topic, read.partition)
        try:
            found = await self._reader.read(ref, after_seq=read.after_seq, limit=read.limit)
        except errors.CorruptRecord as error:
            merge.corrupt(read, error.seq)
        else:
            merge.brought(read, found)

    def _enough(self, *, is_late: bool) -> BrowseStop | None:
        if len(self.records) >= self._asked.limit:
            return "limit"
        if self._bytes >= self._asked.max_bytes:
            return "max_bytes"
        if self.scanned >= SCANNED_MAX:
            return "scanned"
        return "timeout" if is_late and self._has_begun else None

    def _take(self, item: Item) -> None:
        if isinstance(item, MissingRecords):
            self.missing.append(item)
            return
        self.scanned += 1
        seen = self._seen(item)
        if seen is None:
            return  # nor is it told whether the filter failed on it
        shown, masked = self._masks.masked(seen)
        verdict = self._wanted.verdict(shown)
        if verdict is None:
            self.filter_errors += 1
        if verdict:
            self._bytes += size_bytes(shown)
            self.records.append(described(shown, masked))

    def _seen(self, record: Record) -> Record | None:
        """As the principal may see it."""
        return without_hidden(self._allowed, record)


def _busy() -> errors.Overloaded:
    return errors.Overloaded("too many look at records here at the moment; try again")
