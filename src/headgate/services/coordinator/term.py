"""One leadership of a coordinator: everything it decides, from the state it found to its end.

Whatever changes the cluster runs through `apply`, one at a time: the decision is made without I/O,
whole and sound or not at all, then its effects are carried out in order, so what is announced is
already durable. Only for positions that take long to be claimed nothing else waits: how the claim
ended is another event. A decision that is refused has changed nothing. One that fails is a fault of
this program, and a term that can't carry out what it decided may have told half of it: then the
term is over and never comes back. Nothing is decided, kept or told from its state any more, callers
that wait hear so, and only a new term from the store brings everybody together again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from headgate.decide.coordination import invariants
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.effects import (
    Effect,
    EndSession,
    FenceCheckpoints,
    Persist,
    Refuse,
    Send,
)
from headgate.decide.coordination.topics import operating
from headgate.decide.coordination.views.status import Stored, unreported
from headgate.decide.log.lineage import lineage_of
from headgate.errors import Fenced, HeadgateError, InvalidRequest, NotNow, StorageFailed
from headgate.model.control.from_coordinator import CheckedIn, Refused
from headgate.model.control.to_coordinator import (
    AckTopology,
    CheckIn,
    Evidence,
    Goodbye,
    Hello,
    ToCoordinator,
)
from headgate.model.event import PartitionRef
from headgate.model.evidence import Skip
from headgate.model.position import Position
from headgate.model.stored import StoredState
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.control import ControlStream
from headgate.ports.coordination import CoordinationStore
from headgate.ports.election import Leadership
from headgate.ports.letters import Fences, LetterStore
from headgate.ports.log import Extent, LogReader
from headgate.ports.machine import Machine
from headgate.services.coordinator.fencing import FenceOutcome, Fencing
from headgate.services.coordinator.inquiries import Inquiries
from headgate.tasks import Crew, Helpers

TICK_S = 0.25
POSITIONS_TIMEOUT_S = 0.5
FENCE_TIMEOUT_S = 0.5
"""For so long whatever else is to be decided waits for positions that are claimed."""
AGES_TIMEOUT_S = 1.0
"""For all partitions whose age nobody reports, together."""
CARRY_OUT_TIMEOUT_S = 5.0
"""Longest wait, at the end of a term, for effects that are being carried out."""
REFUSED_TIMEOUT_S = 1.0
"""Longest wait for a node to take in why it is refused."""

T = TypeVar("T")

Decide = Callable[[int], list[Effect]]
"""Decides at that time."""


class Term:
    """`begin`, serve streams until `over` returns, `end`. `ended_by` is the member whose message
    made it end, if a message did."""

    def __init__(
        self,
        leadership: Leadership,
        store: CoordinationStore,
        checkpoints: CheckpointStore,
        letters: LetterStore,
        reader: LogReader,
        machine: Machine,
        streams: Mapping[int, ControlStream],
    ) -> None:
        self._leadership = leadership
        self._store = store
        self._checkpoints = checkpoints
        self._reader = reader
        self._fencing = Fencing(checkpoints, letters, reader, wall_ms=machine.wall_ms)
        self._streams = streams
        self.inquiries = Inquiries(streams)
        self._lock = asyncio.Lock()
        self._changed = asyncio.Condition(self._lock)
        self._crew = Crew("coordinator")
        self._applying: set[asyncio.Task[Any]] = set()
        self._watching = 0
        """How many wait until what is decided makes something true."""
        self._broken = asyncio.Event()
        self._error: Exception | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._positions: dict[PartitionRef, Position] = {}
        self._ages: dict[PartitionRef, tuple[int, int]] = {}
        """Of partitions behind: the position, and the time of the record after it."""
        self._behind: dict[PartitionRef, tuple[int, int]] = {}
        """The position, and the time at which something was first seen to wait after it."""
        self.positions_error = ""
        """Why the positions that `stored` gave last may be old."""
        self.ended_by: Hello | None = None
        self._now_s = machine.monotonic_s
        self._wall_ms = machine.wall_ms
        self.cluster: Cluster

    def now_ms(self) -> int:
        """By the clock that its decisions are made by."""
        return round(self._now_s() * 1_000)

    @property
    def is_over(self) -> bool:
        """Whether it may not decide any more."""
        return self._error is not None or not self._leadership.held

    async def begin(self, new_cluster: Callable[[StoredState, int], Cluster]) -> None:
        """Take up the state; every start counts, so that numbers grow over it."""
        stored = await self._store.load()
        stored = msgspec.structs.replace(stored, boot=stored.boot + 1)
        self.cluster = new_cluster(stored, self.now_ms())
        invariants.check(self.cluster)
        await self._store.save(stored)
        self._ticker = self._crew.start("tick", self._tick(), awaited=True)

    async def over(self) -> None:
        """Returns when the leadership is lost; raises what makes it impossible to go on."""
        assert self._ticker is not None, "begin first"
        async with Helpers() as helpers:
            lost = helpers.start(self._leadership.lost())
            broken = helpers.start(self._broken.wait())
            ends: list[asyncio.Future[Any]] = [lost, broken, self._ticker]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._error is not None:
            raise self._error
        if self._leadership.held:
            raise RuntimeError("no time passes for the cluster any more")

    async def end(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._applying:
            # A store that hangs must not keep the leadership from a coordinator that could go on
            # with it.
            _, hanging = await asyncio.wait(set(self._applying), timeout=CARRY_OUT_TIMEOUT_S)
            for applying in hanging:
                applying.cancel()
        await self._leadership.resign()
        with contextlib.suppress(
            TimeoutError
        ):  # callers that wait for something are told that it is over
            async with asyncio.timeout(CARRY_OUT_TIMEOUT_S), self._lock:
                self._changed.notify_all()
        await self._store.close()

    # --- streams -------------------------------------------------------------------------------

    async def serve(self, session: int, stream: ControlStream, hello: Hello) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.apply(partial(self.cluster.opened, session, hello), by=hello)
            tasks.append(self._crew.start("writing", stream.write_until_hung()))
            reading = self._read(session, stream, hello)
            tasks.append(self._crew.start("reading", reading, awaited=True))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not self.is_over:
                await self.apply(partial(self.cluster.closed, session), by=hello)

    async def _read(self, session: int, stream: ControlStream, hello: Hello) -> None:
        while (message := await self._next(stream)) is not None:
            if isinstance(message, CheckIn):
                stream.send(CheckedIn())  # also while a decision waits for its store
            if isinstance(message, Evidence):
                self.inquiries.heard(session, message)
                continue
            hear = partial(self.cluster.received, session, message)
            if self._is_mere_news(session, message):
                self._note(hear, hello)
            else:
                await self.apply(hear, by=hello)  # applied before the next one is read
            if isinstance(message, Goodbye):
                return

    async def _next(self, stream: ControlStream) -> ToCoordinator | None:
        """The next message; a node whose message can't be read is told so before the stream
        ends."""
        try:
            return await stream.receive()
        except InvalidRequest as error:
            stream.send(Refused(error.message))
            stream.hang()
            await asyncio.sleep(REFUSED_TIMEOUT_S)
            return None

    def _is_mere_news(self, session: int, message: ToCoordinator) -> bool:
        """Of ten thousand clients this is nearly all that comes, and nothing follows from it."""
        is_client = session in self.cluster.clients
        return isinstance(message, CheckIn) or (is_client and isinstance(message, AckTopology))

    def _note(self, hear: Decide, by: Hello) -> None:
        """Take in a message that has no effects; it need not wait for other messages' effects to be
        carried out, and touches nothing that an invariant is about."""

        def news(now_ms: int) -> list[Effect]:
            effects = hear(now_ms)
            assert not effects, f"{effects} follow, and nobody carries them out"
            return effects

        self._decided(news, by)

    # --- decisions -----------------------------------------------------------------------------

    async def apply(self, decide: Decide, *, by: Hello | None = None) -> None:
        """Decide, then carry out every effect, also when the caller goes away meanwhile.

        Raises why it is refused, or NotNow when the term ends by it or is over.
        """
        if self._applying or self._watching:
            whole = self._apply_whole(decide, by)
        elif effects := await self._applied_at_once(decide, by):
            whole = self._carry_out_whole(effects)
        else:
            return
        deciding = self._finished("decision", whole)
        try:
            await asyncio.shield(deciding)
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if deciding.cancelled() and asking is not None and not asking.cancelling():
                # It hung, and the end of the term didn't wait for it: nobody cancelled who asked.
                raise _over() from None
            raise

    async def _applied_at_once(self, decide: Decide, by: Hello | None) -> list[Effect]:
        """What is decided while nobody else has anything to decide, and that only has to be told,
        as nearly everything, needs no task of its own. Returns what has to be waited for, if that
        is more: nobody else decides until it is carried out."""
        await self._lock.acquire()  # at once: nobody has it
        left: list[Effect] = []
        try:
            effects = _unless_refused(self._decided(decide, by))
            if all(isinstance(effect, Send | EndSession) for effect in effects):
                with self._or_over():
                    self._tell(effects)
            else:
                left = effects
        finally:
            if not left:
                self._lock.release()
        return left

    def _finished(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begun, and brought to its end before that of the term, if it doesn't take too long."""
        task = self._crew.start(name, work, awaited=True)
        self._applying.add(task)
        task.add_done_callback(self._applying.discard)
        return task

    async def until(self, condition: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until what was decided makes `condition` true; raises TimeoutError, or NotNow when
        the term ends before that."""
        self._watching += 1
        try:
            async with asyncio.timeout(timeout_s), self._lock:
                await self._changed.wait_for(lambda: self.is_over or condition())
        finally:
            self._watching -= 1
        self._check_goes_on()

    async def left_behind(self) -> dict[str, Fences]:
        """By name, what topics leave whose deletion is kept: under which epochs they were deleted.
        Raises NotNow when the term is over."""
        left: dict[str, Fences] = {}

        def look(_now_ms: int) -> list[Effect]:
            names = sorted(self.cluster.deleted)
            left.update({name: operating.left_behind(self.cluster, name) for name in names})
            return []

        await self.apply(look)  # all that was decided before is kept and told by then
        return left

    async def letters_swept(self, names: Collection[str]) -> None:
        """Of these deleted topics. Raises NotNow when the term is over."""
        await self.apply(lambda _: self.cluster.letters_swept(names))

    async def _tick(self) -> None:
        """For as long as this goes on, time passes for the cluster; `over` notices its end."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.apply(self.cluster.tick)

    async def _apply_whole(self, decide: Decide, by: Hello | None) -> None:
        async with self._lock:
            try:
                effects = _unless_refused(self._decided(decide, by))
                while effects:
                    effects = await self._carried_out(effects)
            finally:
                self._changed.notify_all()

    async def _carry_out_whole(self, effects: list[Effect]) -> None:
        """Under the lock, which the caller has taken for the decision."""
        try:
            while effects:
                effects = await self._carried_out(effects)
        finally:
            self._changed.notify_all()
            self._lock.release()

    def _decided(self, decide: Decide, by: Hello | None = None) -> list[Effect]:
        """What follows; whatever `decide` raises is a fault of this program, which may strike again
        and may have changed the subscriptions, so the term ends with it."""
        self._check_goes_on()
        try:
            return decide(self.now_ms())
        except Exception as error:
            self._break(error, by)
            raise NotNow(
                "the coordinator failed while it decided this, and begins anew with what is "
                "stored; try again in a moment, and look into its log if it fails again"
            ) from error

    async def _carried_out(self, effects: list[Effect]) -> list[Effect]:
        """Returns what follows."""
        with self._or_over():
            return await self._carry_out(effects)

    @contextlib.contextmanager
    def _or_over(self) -> Iterator[None]:
        """Whatever goes wrong while it is carried out ends the term, half-way as it is."""
        try:
            yield
        except HeadgateError as error:
            self._break(error)
            raise
        except asyncio.CancelledError:  # by the end of the term, or within a store
            self._break(RuntimeError("what was decided was cancelled before all of it was done"))
            raise
        except Exception as error:
            self._break(error)
            raise NotNow("the coordinator couldn't keep what it decided; see its log") from error

    def _break(self, error: Exception, by: Hello | None = None) -> None:
        if self._error is None:
            self._error, self.ended_by = error, by
            self._broken.set()

    async def _carry_out(self, effects: list[Effect]) -> list[Effect]:
        """Returns what follows from what the stores know better."""
        follow_up: list[Effect] = []
        for effect in effects:
            match effect:
                case Send() | EndSession():
                    self._tell((effect,))
                case Persist(state):
                    self._check_goes_on()
                    await self._store.save(state)
                case FenceCheckpoints():
                    follow_up += await self._fence(effect)
                case Refuse():
                    raise AssertionError("refused, and decided all the same")
        return follow_up

    def _tell(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(session, message):
                    if (stream := self._streams.get(session)) is not None:
                        stream.send(message)
                case EndSession(session):
                    if (stream := self._streams.get(session)) is not None:
                        stream.hang()

    async def _fence(self, wanted: FenceCheckpoints) -> list[Effect]:
        """Claim the positions and the letters. A store that is away is asked again with a later
        tick; nothing else waits for one that takes its time, and its answer is told when it
        comes."""
        if not (owners := self._fencing.begun(wanted.owners)):
            return []
        claiming = self._finished("claiming", self._fencing.claimed(owners, wanted))
        done, _ = await asyncio.wait({claiming}, timeout=FENCE_TIMEOUT_S)
        if done:
            return self._decided(self._told(claiming.result()))
        self._finished("fencing", self._fence_later(claiming))
        return []

    async def _fence_later(self, claiming: asyncio.Task[FenceOutcome]) -> None:
        try:
            outcome = await claiming
        except Exception as error:
            self._break(error)
            raise
        await self._apply_whole(self._told(outcome), None)

    def _told(self, outcome: FenceOutcome) -> Decide:
        return lambda _: self.cluster.fenced(
            outcome.fenced,
            overtaken=outcome.overtaken,
            unclaimed=outcome.unclaimed,
            put_back=outcome.put_back,
        )

    async def check_groups(self, ref: PartitionRef) -> None:
        """Raises StorageFailed where what a group has processed of `ref`, or of what goes back with
        it, can't be read, so that it could not be put back, and would hold the partition until
        somebody mends it."""
        topic = self.cluster.topics.get(ref.topic)
        behind = {} if topic is None else lineage_of(topic).behind(ref.partition, 0)
        refs = [ref, *(PartitionRef(ref.topic, number) for number in behind)]
        await self._fencing.check_groups(refs, self.cluster.groups.all())

    def skip_of(self, ref: PartitionRef, seq: int) -> Skip | None:
        """When an operator went past the record without telling anybody, if it remembers that."""
        return self._fencing.skip_of(ref, seq)

    def _check_goes_on(self) -> None:
        if self._error is not None:
            raise _over()
        # After a pause longer than the lease another leader decides, whatever is still queued here.
        if not self._leadership.held:
            raise Fenced("another coordinator leads now; this one must stop deciding")

    # --- what the stores know ------------------------------------------------------------------

    async def stored(self) -> Stored:
        """Positions and ages, so that lag is right also while nothing follows the log.

        What was known before while a store is away: the caller wants an answer now. Where nobody
        has ever seen the next record, it waits at least since it was first missed.
        """
        try:
            async with asyncio.timeout(POSITIONS_TIMEOUT_S):
                self._listed(await self._checkpoints.list())
        except (StorageFailed, TimeoutError) as error:
            self.positions_error = str(error) or f"no answer within {POSITIONS_TIMEOUT_S:g} s"
        positions = self._positions
        behind = {
            ref: positions.get(ref, Position()).settled
            for ref in unreported(self.cluster, positions)
        }
        self._ages = {r: one for r, one in self._ages.items() if behind.get(r) == one[0]}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGES_TIMEOUT_S):
                await self._look_at_ages(behind)
        before, now_ms = self._behind, self._wall_ms()
        self._behind = {
            ref: before[ref] if before.get(ref, (None, 0))[0] == settled else (settled, now_ms)
            for ref, settled in behind.items()
        }
        return Stored(
            positions,
            {ref: time_ms for ref, (_, time_ms) in self._ages.items()},
            {ref: since_ms for ref, (_, since_ms) in self._behind.items()},
        )

    def _listed(self, positions: Mapping[PartitionRef, Position]) -> None:
        """Take over the positions; of one that can't be read the former is kept."""
        before = self._positions
        self._positions = {
            ref: before.get(ref, one) if one.unreadable else one for ref, one in positions.items()
        }
        unreadable = (one.unreadable for one in positions.values() if one.unreadable)
        self.positions_error = next(unreadable, "")

    async def _look_at_ages(self, behind: Mapping[PartitionRef, int]) -> None:
        """Notes the ages as they are found; those that are known already stay."""
        for ref, settled in behind.items():
            if ref in self._ages:
                continue
            with contextlib.suppress(HeadgateError):
                for record in await self._reader.read(ref, after_seq=settled, limit=1):
                    self._ages[ref] = settled, record.time_ms

    async def extent(self, ref: PartitionRef) -> Extent:
        return await self._reader.extent(ref)


def _unless_refused(effects: list[Effect]) -> list[Effect]:
    """Raises why, where that is all that came of it."""
    match effects:
        case [Refuse(error)]:
            raise error
    return effects


def _over() -> NotNow:
    return NotNow("the coordinator's term has ended; another begins in a moment")
