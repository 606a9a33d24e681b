"""What a Spark task runs: a lane follows its partitions until its window ends.

    read the log -> match -> dispatch -> settle -> save the position

in one asyncio loop. Order per partition is natural: a record is handed to the pipelines in the
order it was read. A lane starts at the stored position, whatever was planned, and reads nothing
before it has the subscriptions.

When its window is over, a lane gives its receipt, so that Spark can start the next one, and goes on
until its successor has taken over: the successor claims the checkpoint under a higher fence, and
from then on nothing of the former lane counts. So a change of windows is no pause.

A partition can also leave a lane in the middle of a window: handed off to another router, or taken
by somebody newer. The lane goes on with the others, and ends when it has none left.

It must never settle a record that it didn't match against every subscription it had acknowledged,
and never save under a fence that somebody overtook.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from headgate.decide.batching import BatchLimits
from headgate.decide.retrying import Backoff
from headgate.errors import Fenced, StorageFailed
from headgate.lane.adopted import Adopted
from headgate.lane.dispatch import GatewayPipeline
from headgate.lane.matching import Matching
from headgate.lane.partition import SourcePartition
from headgate.lane.spec import LaneReceipt, LaneSpec
from headgate.model import control
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef, Record
from headgate.model.topology import Owner, Topology
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.control import ControlSession
from headgate.ports.log import LogReader
from headgate.ports.transport import DeliveryTransport
from headgate.telemetry import LogEvent

log = structlog.get_logger()

CLAIM_AGAIN_S = 0.5
CLAIM_PATIENCE_S = 30.0
"""How long a lane that starts puts up with a checkpoint store that is away."""


@dataclass(frozen=True, slots=True)
class LanePorts:
    """What a lane needs from outside; `connect` opens its stream to the coordinator."""

    reader: LogReader
    checkpoints: CheckpointStore
    transport: DeliveryTransport
    connect: Callable[[Callable[[], control.Hello]], ControlSession]


class Lane:
    """One lane of one window: `run` is its whole life, `receipt` comes when its window is over."""

    def __init__(self, spec: LaneSpec, ports: LanePorts) -> None:
        self._spec = spec
        self._ports = ports
        self._partitions: dict[PartitionRef, SourcePartition] = {}
        self._pipelines: dict[str, GatewayPipeline] = {}
        self._adopted = Adopted()
        self._matching = Matching(self._adopted, spec.settings.soft_delete)
        self._topology = Topology(0)
        self._subscribed = asyncio.Event()
        self._ending = asyncio.Event()
        self._window_over = asyncio.Event()
        self._receipt: asyncio.Future[LaneReceipt] = asyncio.get_running_loop().create_future()
        self._save_now = asyncio.Event()
        self._room = asyncio.Event()
        self._reason = ""
        self._overdue = False
        self._handed_off: list[Owner] = []
        self._hand_offs: set[asyncio.Task[None]] = set()
        self._unsaved = 0
        self._read = self._matched = self._delivered = 0
        self._started_s = time.time()
        self._cpu_before_s = time.process_time()

    async def receipt(self) -> LaneReceipt:
        return await asyncio.shield(self._receipt)

    async def run(self) -> None:
        try:
            await self._run()
        except asyncio.CancelledError:
            self._receipt.cancel()
            raise
        except Exception as error:
            # Spark must see the failure of a window that is still open, to count and to retry it.
            if not self._receipt.done():
                self._receipt.set_exception(error)
            raise
        self._give_receipt()

    async def _run(self) -> None:
        spec, settings = self._spec, self._spec.settings
        await asyncio.gather(*(self._claim(owner) for owner in spec.owns))
        if not self._partitions:
            self._end("somebody newer has taken over")
            return
        session = self._ports.connect(self._hello)
        reading = asyncio.create_task(self._follow(), name="lane-follow")
        checkpointing = asyncio.create_task(self._checkpoint(), name="lane-checkpoint")
        tasks = [
            reading,
            checkpointing,
            asyncio.create_task(self._listen(session), name="lane-listen"),
            asyncio.create_task(self._adopt(session), name="lane-adopt"),
            asyncio.create_task(self._report(session), name="lane-report"),
            asyncio.create_task(self._watch_window(session), name="lane-window"),
        ]
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({ending, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            await self._cancel([reading, checkpointing])
            if self._partitions:
                await self._flush(settings.flush_timeout_s)
                await self._save_all(settings.checkpoint_timeout_s)
            await session.send(self._lane_report())
        finally:
            pipelines = [pipeline.task for pipeline in self._pipelines.values()]
            await self._cancel([*tasks, ending, *self._hand_offs, *pipelines])
            await session.close()

    async def _claim(self, owner: Owner) -> None:
        fence = Fence(owner.epoch, self._spec.window, self._spec.attempt)
        deadline_s = asyncio.get_running_loop().time() + CLAIM_PATIENCE_S
        while True:
            try:
                position = await self._ports.checkpoints.claim(owner.ref, fence)
            except Fenced as error:
                log.info(LogEvent.FENCED, partition=str(owner.ref), error=error.message)
                return
            except StorageFailed as error:
                # A failed lane costs Spark one of its tries, and the next one fares no better.
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                log.warning(LogEvent.CHECKPOINT_FAILED, partition=str(owner.ref), error=str(error))
                await asyncio.sleep(CLAIM_AGAIN_S)
            else:
                self._partitions[owner.ref] = SourcePartition(owner, fence, position)
                return

    # --- what pipelines ask and tell (dispatch.Surroundings) -------------------------------------

    def gateway_url(self, gateway_id: str) -> str | None:
        node = self._topology.node(gateway_id)
        return node.url if node is not None else None

    def is_live(self, subscription_id: str) -> bool:
        return subscription_id in self._adopted.index

    def holds(self, ref: PartitionRef) -> bool:
        return ref in self._partitions

    def settled(self, delivery: Delivery, *, acknowledged: bool) -> None:
        partition = self._partitions.get(PartitionRef(delivery.topic, delivery.partition))
        if partition is None:
            return  # whoever has it now delivers it again
        partition.settle(delivery.seq)
        self._delivered += acknowledged
        self._count_unsaved(1)
        self._room.set()

    def overtaken(self, ref: PartitionRef, reason: str) -> None:
        if self._partitions.pop(ref, None) is not None:
            log.info(LogEvent.FENCED, partition=str(ref), error=reason)
            self._room.set()
        if not self._partitions:
            self._end(reason)

    # --- reading ---------------------------------------------------------------------------------

    async def _follow(self) -> None:
        await self._subscribed.wait()
        async with self._ports.reader.follow(list(self._partitions)) as wake_ups:
            hungry = set(self._partitions)
            while not self._ending.is_set():
                if not hungry:
                    hungry |= await anext(wake_ups)
                for ref in sorted(hungry):
                    partition = self._partitions.get(ref)
                    if partition is None or not await self._read_some(partition):
                        hungry.discard(ref)

    async def _read_some(self, partition: SourcePartition) -> bool:
        """Read and match up to a limit; False when the partition has nothing more for now."""
        settings = self._spec.settings
        while self._unsettled() >= settings.queue_size:
            self._room.clear()
            await self._room.wait()
        records = await self._ports.reader.read(
            partition.ref, after_seq=partition.read_seq, limit=settings.read_limit
        )
        if not records or partition.leaving or not self.holds(partition.ref):
            return False
        self._match(partition, records)
        # Pipelines and acknowledgements get their turn between two reads.
        await asyncio.sleep(0)
        return len(records) == settings.read_limit

    def _match(self, partition: SourcePartition, records: list[Record]) -> None:
        """No await in here: the index is the same for every record of one call."""
        tracker = partition.tracker
        for record, deliveries in self._matching.deliveries(partition, records):
            partition.accept(record)
            tracker.take(record.seq, pending=len(deliveries), time_ms=record.time_ms)
            for gateway_id, delivery in deliveries.items():
                self._pipeline(gateway_id).put(delivery)
            self._matched += len(deliveries)
        self._read += len(records)
        self._count_unsaved(len(records))

    def _pipeline(self, gateway_id: str) -> GatewayPipeline:
        pipeline = self._pipelines.get(gateway_id)
        if pipeline is None:
            settings = self._spec.settings
            pipeline = GatewayPipeline(
                gateway_id,
                (self._spec.window, self._spec.attempt),
                BatchLimits(
                    settings.batch_max_size,
                    settings.batch_max_wait_s,
                    settings.batch_flush_interval_s,
                ),
                Backoff(settings.retry_initial_s, settings.retry_max_s, settings.retry_multiplier),
                self._ports.transport,
                self,
                settings.delivery_timeout_s,
            )
            self._pipelines[gateway_id] = pipeline
        return pipeline

    def _unsettled(self) -> int:
        return sum(p.tracker.unsettled for p in self._partitions.values())

    # --- positions -------------------------------------------------------------------------------

    def _count_unsaved(self, count: int) -> None:
        self._unsaved += count
        if self._unsaved >= self._spec.settings.checkpoint_event_count:
            self._save_now.set()

    async def _checkpoint(self) -> None:
        """Save every interval, or sooner when enough was settled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._spec.settings.checkpoint_interval_s):
                    await self._save_now.wait()
            self._save_now.clear()
            self._unsaved = 0
            for partition in list(self._partitions.values()):
                await self._save(partition)

    async def _save(self, partition: SourcePartition) -> None:
        try:
            await partition.save(self._ports.checkpoints)
        except Fenced as error:
            self.overtaken(partition.ref, error.message)

    async def _flush(self, timeout_s: float) -> None:
        """What is in flight may still be acknowledged; what isn't stays unsettled."""
        for pipeline in self._pipelines.values():
            pipeline.flush()
        drained = asyncio.gather(*(p.drained() for p in self._pipelines.values()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await drained

    async def _save_all(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                for partition in list(self._partitions.values()):
                    await self._save(partition)
        except TimeoutError:
            log.warning(LogEvent.CHECKPOINT_FAILED, window=self._spec.window)

    # --- the coordinator -------------------------------------------------------------------------

    def _hello(self) -> control.Hello:
        spec = self._spec
        self._adopted.said_hello()
        return control.Hello(
            role="lane",
            node_id=spec.router_id,
            incarnation=spec.incarnation,
            pid=os.getpid(),
            lane=spec.lane,
            window=spec.window,
            attempt=spec.attempt,
            assignment=spec.assignment,
            owns=tuple(partition.owner for partition in self._partitions.values()),
            generation=self._topology.generation,
            revision=self._adopted.revision,
        )

    async def _listen(self, session: ControlSession) -> None:
        async for message in session.messages():
            match message:
                case control.Welcome():
                    await self._welcomed(session)
                case control.PushTopology(topology):
                    if topology.generation > self._topology.generation:
                        self._topology = topology
                case control.SubscriptionSnapshot() | control.SubscriptionChanges():
                    if self._adopted.hear(message):
                        await self._acknowledge(session)
                case control.EndWindow(reason, hand_over):
                    if hand_over:
                        self._hand_over(reason)
                    else:
                        self._end(reason)
                case control.LetGo(owners, settle):
                    self._let_go(session, owners, settle=settle)
                case control.Refused(reason):
                    self._partitions.clear()
                    self._end(reason)
                case _:
                    pass

    async def _adopt(self, session: ControlSession) -> None:
        while True:
            if await self._adopted.adopt(self._read_so_far):
                await self._acknowledge(session)

    async def _welcomed(self, session: ControlSession) -> None:
        if self._handed_off:
            # The coordinator may not have heard it the first time.
            await session.send(control.Released(tuple(self._handed_off)))
        if self._overdue:
            self._hand_over("time")

    def _let_go(self, session: ControlSession, owners: Sequence[Owner], *, settle: bool) -> None:
        mine = [
            partition
            for owner in owners
            if (partition := self._partitions.get(owner.ref)) and partition.owner == owner
        ]
        if settle:
            task = asyncio.create_task(self._hand_off(session, mine), name="lane-hand-off")
            self._hand_offs.add(task)
            task.add_done_callback(self._hand_offs.discard)
        else:
            for partition in mine:
                self.overtaken(partition.ref, "somebody newer has taken over")

    async def _hand_off(self, session: ControlSession, leaving: list[SourcePartition]) -> None:
        """Stop reading, settle what is in flight, save the position, and only then say so."""
        settings = self._spec.settings
        for partition in leaving:
            partition.leaving = True
        await asyncio.gather(*(p.all_settled(settings.flush_timeout_s) for p in leaving))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.checkpoint_timeout_s):
                await asyncio.gather(*(self._save(partition) for partition in leaving))
        gone = [p.owner for p in leaving if self._partitions.pop(p.ref, None) is not None]
        self._room.set()  # what is left of them unsettled doesn't hold the others
        self._handed_off += gone
        log.info(LogEvent.HANDED_OFF, partitions=[str(owner.ref) for owner in gone])
        await session.send(control.Released(tuple(gone)))
        if not self._partitions:
            self._end("everything is handed off")

    def _read_so_far(self) -> dict[PartitionRef, int]:
        if not self._subscribed.is_set():
            return {}
        return {ref: partition.read_seq for ref, partition in self._partitions.items()}

    async def _acknowledge(self, session: ControlSession) -> None:
        self._subscribed.set()
        await session.send(control.AckSubscriptions(self._adopted.revision))

    async def _report(self, session: ControlSession) -> None:
        while True:
            await asyncio.sleep(self._spec.settings.report_interval_s)
            await session.send(self._lane_report())

    def _lane_report(self) -> control.LaneReport:
        return control.LaneReport(
            partitions=tuple(p.report() for p in self._partitions.values()),
            read=self._read,
            matched=self._matched,
            delivered=self._delivered,
            filter_errors=self._matching.filter_errors,
            cpu_s=round(time.process_time() - self._cpu_before_s, 3),
        )

    # --- ending ----------------------------------------------------------------------------------

    async def _watch_window(self, session: ControlSession) -> None:
        """Give the receipt when the window is over, then wait for the successor.

        The window isn't over while the coordinator is away: the next one's lanes could not learn
        the subscriptions, and this one can go on.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._spec.settings.window_s):
                await self._window_over.wait()
        self._overdue = True
        if session.connected:
            self._hand_over("time")
        await self._window_over.wait()
        # A fresh position leaves the successor little to repeat.
        await self._save_all(self._spec.settings.checkpoint_timeout_s)
        self._give_receipt()
        await asyncio.sleep(self._spec.settings.linger_s)
        self._end("nobody took over")

    def _hand_over(self, reason: str) -> None:
        if not self._window_over.is_set():
            self._reason = reason
            self._window_over.set()

    def _end(self, reason: str) -> None:
        if not self._ending.is_set():
            self._reason = reason
            self._ending.set()

    def _give_receipt(self) -> None:
        if not self._receipt.done():
            self._receipt.set_result(self._written_receipt())

    async def _cancel(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _written_receipt(self) -> LaneReceipt:
        return LaneReceipt(
            lane=self._spec.lane,
            window=self._spec.window,
            pid=os.getpid(),
            reason=self._reason,
            fenced=not self._partitions,
            read=self._read,
            matched=self._matched,
            delivered=self._delivered,
            started_s=self._started_s,
            ended_s=time.time(),
        )
