"""One leadership of a coordinator: everything it decides, from the state it found to its end.

Whatever changes the cluster runs through `apply`, one at a time: the decision is made without I/O,
then its effects are carried out in order, so what is announced is already durable. A term that
can't carry out what it decided, or has lost the leadership, is over and never comes back: half of
a decision may be told, and only a new term from the store brings everybody together again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import structlog

from headgate.adapters.grpc.control import ServerStream
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.effects import Effect, FenceCheckpoints, Hang, Persist, Send
from headgate.decide.coordination.status import Stored, unreported
from headgate.errors import Fenced, HeadgateError, StorageFailed
from headgate.model.control import (
    AckTopology,
    CheckedIn,
    CheckIn,
    Goodbye,
    Hello,
    ToCoordinator,
)
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position
from headgate.model.stored import StoredState
from headgate.model.topology import Owner
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.coordination import CoordinationStore
from headgate.ports.election import Leadership
from headgate.ports.log import Extent, LogReader
from headgate.tasks import Crew
from headgate.telemetry import LogEvent

log = structlog.get_logger()

TICK_S = 0.25
POSITIONS_TIMEOUT_S = 0.5
CARRY_OUT_TIMEOUT_S = 5.0
"""Longest wait, at the end of a term, for effects that are being carried out."""


class Term:
    """`begin`, serve streams until `over` returns, `end`."""

    def __init__(
        self,
        leadership: Leadership,
        store: CoordinationStore,
        checkpoints: CheckpointStore,
        reader: LogReader,
        now_ms: Callable[[], int],
        streams: Mapping[int, ServerStream],
    ) -> None:
        self._leadership = leadership
        self._store = store
        self._checkpoints = checkpoints
        self._reader = reader
        self._streams = streams
        self._lock = asyncio.Lock()
        self._changed = asyncio.Condition(self._lock)
        self._crew = Crew("coordinator")
        self._applying: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ticker: asyncio.Task[None] | None = None
        self._positions: dict[PartitionRef, Position] = {}
        self.positions_error = ""
        """Why the positions that `stored` gave last may be old."""
        self.now_ms = now_ms
        self.cluster: Cluster

    async def begin(self, new_cluster: Callable[[StoredState], Cluster]) -> None:
        """Take up the state; every start counts, so that numbers grow over it."""
        stored = await self._store.load()
        stored = msgspec.structs.replace(stored, boot=stored.boot + 1)
        await self._store.save(stored)
        self.cluster = new_cluster(stored)
        self._ticker = self._crew.start("tick", self._tick(), awaited=True)

    async def over(self) -> None:
        """Returns when the leadership is lost; raises what makes it impossible to go on."""
        lost = self._crew.start("leadership", self._leadership.lost())
        try:
            await asyncio.wait({lost, self._broken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
        if self._broken.done():
            self._broken.result()

    async def end(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._applying:
            # A store that hangs must not keep the leadership from whoever could go on with it.
            _, hanging = await asyncio.wait(set(self._applying), timeout=CARRY_OUT_TIMEOUT_S)
            for applying in hanging:
                applying.cancel()
        await self._leadership.resign()
        await self._store.close()
        if self._broken.done():
            self._broken.exception()  # seen, whoever else looks

    # --- streams -------------------------------------------------------------------------------

    async def serve(self, session: int, stream: ServerStream, hello: Hello) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.apply(partial(self.cluster.opened, session, hello))
            tasks.append(self._crew.start("writing", stream.write_until_hung()))
            tasks.append(self._crew.start("reading", self._read(session, stream), awaited=True))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not self._broken.done() and self._leadership.held:
                await self.apply(partial(self.cluster.closed, session))

    async def _read(self, session: int, stream: ServerStream) -> None:
        while (message := await stream.receive()) is not None:
            if isinstance(message, CheckIn):
                stream.send(CheckedIn())  # also while a decision waits for its store
            if self._is_mere_news(session, message):
                self._note(session, message)
            else:
                await self.apply(
                    lambda now: self.cluster.received(session, message, now)
                )  # applied before the next one is read
            if isinstance(message, Goodbye):
                return

    def _is_mere_news(self, session: int, message: ToCoordinator) -> bool:
        """Of ten thousand clients this is nearly all that comes, and nothing follows from it."""
        is_client = session in self.cluster.clients
        return isinstance(message, CheckIn) or (is_client and isinstance(message, AckTopology))

    def _note(self, session: int, message: ToCoordinator) -> None:
        """Take in what has no effects; it need not wait for those of others to be carried out."""
        self._check_held()
        effects = self.cluster.received(session, message, self.now_ms())
        assert not effects

    # --- decisions -----------------------------------------------------------------------------

    async def apply(self, decide: Callable[[int], list[Effect]]) -> None:
        """Decide, then carry out every effect, also when whoever asked goes away meanwhile."""
        applying = self._crew.start("decision", self._apply_whole(decide), awaited=True)
        self._applying.add(applying)
        applying.add_done_callback(self._applying.discard)
        await asyncio.shield(applying)

    async def until(self, condition: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until what was decided makes `condition` true; raises TimeoutError."""
        async with asyncio.timeout(timeout_s), self._lock:
            await self._changed.wait_for(condition)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.apply(self.cluster.tick)
            except HeadgateError:
                return  # the term is over, and says why
            except Exception:
                log.exception(LogEvent.UNEXPECTED)

    async def _apply_whole(self, decide: Callable[[int], list[Effect]]) -> None:
        async with self._lock:
            self._check_held()
            effects = decide(self.now_ms())
            try:
                while effects:
                    effects = await self._carry_out(effects)
            except Exception as error:
                if not self._broken.done():
                    self._broken.set_exception(error)
                raise
            self._changed.notify_all()

    async def _carry_out(self, effects: list[Effect]) -> list[Effect]:
        """Returns what follows from what the stores know better."""
        follow_up: list[Effect] = []
        for effect in effects:
            match effect:
                case Send(session, message):
                    if (stream := self._streams.get(session)) is not None:
                        stream.send(message)
                case Hang(session):
                    if (stream := self._streams.get(session)) is not None:
                        stream.hang()
                case Persist(state):
                    self._check_held()
                    await self._store.save(state)
                case FenceCheckpoints(owners):
                    follow_up += await self._fence(owners)
        return follow_up

    async def _fence(self, owners: tuple[Owner, ...]) -> list[Effect]:
        """Claim the positions; a store that is away is asked again with a later tick."""
        outcomes = await asyncio.gather(*map(self._claim, owners), return_exceptions=True)
        fenced: list[Owner] = []
        follow_up: list[Effect] = []
        for owner, outcome in zip(owners, outcomes, strict=True):
            match outcome:
                case None:
                    fenced.append(owner)
                case Fenced():
                    epoch = max(outcome.epoch, owner.epoch)
                    follow_up += self.cluster.overtaken(owner.ref, epoch)
                case StorageFailed():
                    log.warning(LogEvent.CHECKPOINT_FAILED, error=outcome.message)
                case _:
                    raise outcome
        return follow_up + self.cluster.fenced(fenced)

    async def _claim(self, owner: Owner) -> None:
        fence, reset = Fence(owner.epoch), self.cluster.resets.putting.get(owner.ref)
        position = await self._checkpoints.claim(owner.ref, fence)
        if reset is None or (reset.only_forward and position.settled >= reset.settled):
            return
        await self._checkpoints.reset(owner.ref, fence, reset.settled, resync=reset.resync)
        log.warning(
            LogEvent.POSITION_RESET,
            partition=str(owner.ref),
            before=position.settled,
            now=reset.settled,
            resync=reset.resync,
        )

    def _check_held(self) -> None:
        # After a pause longer than the lease somebody else decides, whatever is still queued here.
        if not self._leadership.held:
            raise Fenced("another coordinator leads now; this one must stop deciding")

    # --- what the stores know ------------------------------------------------------------------

    async def stored(self) -> Stored:
        """Positions and ages, so that lag is right also while nothing follows the log.

        The last known positions while their store is away: whoever asks wants an answer now.
        """
        try:
            async with asyncio.timeout(POSITIONS_TIMEOUT_S):
                self._positions = await self._checkpoints.list()
            self.positions_error = ""
        except (StorageFailed, TimeoutError) as error:
            self.positions_error = str(error) or f"no answer within {POSITIONS_TIMEOUT_S:g} s"
        positions = self._positions
        oldest_ms: dict[PartitionRef, int] = {}
        for ref in unreported(self.cluster, positions):
            after_seq = positions.get(ref, Position()).settled
            with contextlib.suppress(StorageFailed):
                for record in await self._reader.read(ref, after_seq=after_seq, limit=1):
                    oldest_ms[ref] = record.time_ms
        return Stored(positions, oldest_ms)

    async def extent(self, ref: PartitionRef) -> Extent:
        return await self._reader.extent(ref)
