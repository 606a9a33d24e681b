"""The appends under way, and the bound on what waits.

Invariants: an append, once started, is never cancelled: its outcome would be unknown. A
request keeps its place until it is answered and the store has answered for its appends, so what is
held in memory is bounded. The head of a partition follows every append that succeeded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from headgate import errors
from headgate.decide.produce.room import Room
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark
from headgate.model.topology import Owner
from headgate.ports.log import Appended, LogWriter, Taken
from headgate.ports.machine import Machine
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()


@dataclass(slots=True)
class OpenPartition:
    """`lost` is set when the store refused this node's epoch: a newer owner has it.

    `found_head` is the head it was found with, at `opened_s`: what is behind it was written by a
    former owner, or by this node before a restart.
    """

    owner: Owner
    version: int
    head: int
    opened_s: float
    found_head: int
    earliest: int = 0
    """The first seq that is still there, as of the last look."""
    sealed: bool = False
    """It takes no appends, and ends at `head`."""
    lost: bool = False
    lost_to: int = 0
    """The epoch of the newer owner, as far as the store said."""

    def saw(self, *seqs: int) -> None:
        """Records up to these are there."""
        self.head = max(self.head, *seqs)

    def overtaken(self, error: errors.Fenced) -> None:
        self.lost, self.lost_to = True, max(error.epoch, self.owner.epoch)


@dataclass(frozen=True, slots=True)
class WriteBounds:
    """How much may wait at once, beyond which a request is told to come back; and how many events
    of opportunistic topics whose outcome nobody knows are remembered for a retry. `bytes` are those
    of bodies, from when they begin to arrive."""

    requests: int = 1_024
    bytes: int = 256 * 1024 * 1024
    events: int = 200_000
    remembered_events: int = 100_000


@dataclass(slots=True)
class _UnderWay:
    target: OpenPartition
    request: int


@dataclass(slots=True)
class _Hold:
    """A request's place: held by its caller, then by its appends under way."""

    events: int
    size_bytes: int
    holders: int = 1


class Appends:
    """`on_store_changed` is told of a store that takes nothing until it is opened again."""

    def __init__(self, writer: LogWriter, *, machine: Machine, bounds: WriteBounds) -> None:
        self.on_store_changed: Callable[[PartitionRef, errors.StoreChanged], None] = (
            lambda _ref, _error: None
        )
        self._writer = writer
        self._wall_ms = machine.wall_ms
        self._bounds = bounds
        self._crew = Crew("ingest")
        self._under_way: dict[asyncio.Future[Any], _UnderWay] = {}
        self._taking: dict[tuple[PartitionRef, str], asyncio.Future[Taken]] = {}
        """What each connector has handed in for a partition last, until the store has answered."""
        self._holds: dict[int, _Hold] = {}
        self._numbers = itertools.count()
        self._events_waiting = 0
        self.room = Room(bounds.bytes, setting="ingest.waiting_memory")
        """For requests that arrive, and those that have a place."""

    @property
    def events_waiting(self) -> int:
        """Events of requests that have a place."""
        return self._events_waiting

    # --- the bound -------------------------------------------------------------------------------

    def enter(self, events: int, size_bytes: int) -> int:
        """The number of a request of so many events, which has a place until it leaves.

        Overloaded when there is no room.
        """
        full = len(self._holds) >= self._bounds.requests
        if full or self._events_waiting + events > self._bounds.events:
            raise errors.Overloaded(
                "too many requests wait for the disk; nothing was written, try again later",
                waiting_requests=len(self._holds),
                waiting_events=self._events_waiting,
            )
        self.room.take(size_bytes)
        request = next(self._numbers)
        self._holds[request] = _Hold(events, size_bytes)
        self._events_waiting += events
        return request

    def leave(self, request: int) -> None:
        """The request is answered; its appends under way keep its place until they have ended."""
        self._release(request)

    def _release(self, request: int) -> None:
        hold = self._holds[request]
        hold.holders -= 1
        if hold.holders == 0:
            self._events_waiting -= hold.events
            self.room.give_back(hold.size_bytes)
            del self._holds[request]

    # --- appending -------------------------------------------------------------------------------

    def start(
        self, request: int, target: OpenPartition, events: Sequence[Event], *, version: int
    ) -> asyncio.Future[list[Appended]]:
        """The append under way. A future of the store is taken as it is: no task goes with it."""
        written = self._writer.append(
            target.owner.ref, events, version=version, now_ms=self._wall_ms()
        )
        append: asyncio.Future[list[Appended]]
        if asyncio.iscoroutine(written):
            append = self._crew.start("append", written, awaited=True)
        else:
            assert isinstance(written, asyncio.Future)
            append = written
        self._follow(append, request, target)
        return append

    async def taken(self, ref: PartitionRef, connector: str, *, timeout_s: float) -> None:
        """Wait until the store has answered for what `connector` handed in for `ref` before, also
        where its reader has given up: it hands the same in again, and each time would be held for a
        store that hangs. NotNow after `timeout_s`; where nothing is waited for there is no
        await."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while (taking := self._taking.get((ref, connector))) is not None:
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise errors.NotNow(
                    f"the store of partition {ref.partition} of {ref.topic} hasn't answered for "
                    f"what connector {connector} handed in before; it goes on when it does",
                    topic=ref.topic,
                    partition=ref.partition,
                )
            await asyncio.wait([taking], timeout=left_s)

    async def take_in(
        self,
        request: int,
        target: OpenPartition,
        mark: IntakeMark,
        events: Sequence[Event],
        *,
        version: int,
    ) -> Taken:
        """What the store made of a connector's batch. Who is cancelled meanwhile may hand it in
        again, when `taken` says that the store has answered."""
        writing = self._writer.take_in(
            target.owner.ref, mark, events, version=version, now_ms=self._wall_ms()
        )
        taking = self._crew.start("intake", writing, awaited=True)
        self._follow(taking, request, target)
        about = target.owner.ref, mark.connector
        self._taking[about] = taking
        taking.add_done_callback(lambda _: self._taking.pop(about))
        return await asyncio.shield(taking)

    def _follow(self, append: asyncio.Future[Any], request: int, target: OpenPartition) -> None:
        self._holds[request].holders += 1
        self._under_way[append] = _UnderWay(target, request)
        # The first to be told, so that the waiting request finds the head moved.
        append.add_done_callback(self._ended)

    def _ended(self, append: asyncio.Future[Any]) -> None:
        under_way = self._under_way.pop(append)
        self._release(under_way.request)
        failure = None if append.cancelled() else append.exception()
        target = under_way.target
        if failure is None:
            if not append.cancelled():
                target.saw(*_seqs(append.result()))
            return
        if isinstance(failure, errors.Fenced):
            target.overtaken(failure)
        if isinstance(failure, errors.StoreChanged):
            self.on_store_changed(target.owner.ref, failure)
        partition = str(target.owner.ref)
        if isinstance(failure, errors.HeadgateError):
            log.warning(LogLine.APPEND_FAILED, partition=partition, reason=str(failure))
        elif not isinstance(append, asyncio.Task):  # whose crew has said so
            log.error(LogLine.UNEXPECTED, partition=partition, exc_info=failure)

    # --- looking back ----------------------------------------------------------------------------

    async def find(
        self, ref: PartitionRef, events: Sequence[Event], *, timeout_s: float
    ) -> dict[str, int] | None:
        """The seqs of those of `events` that are in `ref`; None when the store can't tell now."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._writer.find(ref, [event.event_id for event in events])
        except (errors.HeadgateError, TimeoutError) as error:
            if isinstance(error, errors.StoreChanged):
                self.on_store_changed(ref, error)
            reason = str(error) or f"no answer within {timeout_s:g} s"
            log.warning(LogLine.APPEND_FAILED, partition=str(ref), reason=f"read back: {reason}")
            return None

    # --- the end ---------------------------------------------------------------------------------

    async def finished(self, ref: PartitionRef) -> None:
        """Wait for the appends to `ref` that are under way."""
        of_it = [one for one, under in self._under_way.items() if under.target.owner.ref == ref]
        if of_it:
            await asyncio.wait(of_it)

    async def drain(self, *, timeout_s: float) -> bool:
        """Wait for every append under way; False when some are still there at the end."""
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=timeout_s)
        return not self._under_way


def _seqs(result: list[Appended] | Taken) -> list[int]:
    """The records that are there now."""
    return [result.head] if isinstance(result, Taken) else [one.seq for one in result]


Ending = Literal["written", "failed", "unknown", "refused"]


def ending(append: asyncio.Future[list[Appended]]) -> Ending:
    """How an append has ended: only `failed` and `refused` say that nothing was written.

    One that has not ended is as unknown as one that the store didn't foresee the end of, which may
    have happened at any point.
    """
    if not append.done() or append.cancelled():
        return "unknown"
    match append.exception():
        case None:
            return "written"
        case errors.OutcomeUnknown():
            return "unknown"
        case errors.StaleVersion():
            return "failed"
        case errors.CallerError():
            return "refused"
        case errors.HeadgateError():
            return "failed"
    return "unknown"
