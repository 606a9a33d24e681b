"""Two lanes and two gateways, all real, between stores in memory, on virtual time: whatever
features and faults meet is judged by what subscribers and the consumers of a group were told.

`life(seed)` is one such world from its beginning to its end: random steps, then calm, then the
judgement. The coordinator is a stand-in that keeps its promises (adoption, fences, the phases of a
repartition), so that what is found wrong is wrong in a lane, in a gateway, or between the two.

    python -m tests.lane.meeting FIRST LAST [-v]    runs the lives of these seeds, and judges them

The judge (`judging.py`) knows nothing of the code: a record is owed to whoever wants its kind and
began before it, and is accounted for once it came, was told to be left out, or lies or lay in a
dead letter for one of its subscriptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import msgspec
import structlog
from msgspec.structs import replace

from headgate import errors
from headgate.adapters.delivery_wire import encode_lines, read_batch
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.access.grants import all_parsed
from headgate.decide.feed.queue import Resync
from headgate.decide.feed.recent_ids import RecentIds
from headgate.decide.feed.redelivered import Redelivered
from headgate.decide.feed.start_positions import Start, parse_start
from headgate.decide.letters import pacing
from headgate.decide.letters import reading_size as letters_at_once
from headgate.decide.produce.placement import partition_of
from headgate.lane import reading
from headgate.lane.delivery import pipelines as delivering
from headgate.lane.letters import redriving
from headgate.lane.letters import writing as letters
from headgate.metrics.roles import GatewayMetrics
from headgate.model.access import Principal
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import LaneReport
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.model.event import Fence, Op, PartitionRef
from headgate.model.groups import Group, group_id
from headgate.model.lanes import LaneSettings
from headgate.model.subscription import Priority, Subscription
from headgate.model.topology import (
    FormerVersion,
    GatewayRing,
    Node,
    Owner,
    Placement,
    Repartition,
    Topic,
    Topology,
)
from headgate.services.gateway.control import Control
from headgate.services.gateway.delivery import Deliveries
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.consumers import Consumers
from headgate.services.gateway.groups.target import Acknowledged, Target
from headgate.services.gateway.hearing import Hearing
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.subscriptions.registering import Registering
from headgate.services.gateway.subscriptions.subscriptions import (
    Bounds,
    SlowPolicies,
    SubscribeRequest,
    Subscriptions,
)
from headgate.services.gateway.telling import Telling
from headgate.tasks import Crew
from tests.lane.faulty_stores import (
    Link,
    LinkedCheckpoints,
    LinkedLetters,
    Moody,
    StoreMood,
)
from tests.lane.judging import OURS, OWNER, Client, Judge, Share, Written
from tests.lane.world import FakeGateways, LaneWorld
from tests.services.gateway.doubles import FakeCoordinator
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC

GATEWAYS = ("gateway-1", "gateway-2")
LANES = 2
KEYS = tuple("abcdef")
TARGETS = 2
COLLECTIONS = ("gone", "kept")
"""Those that something is said about the whole of; the records with keys are of none."""
MOST_PARTITIONS = 4
SOFT_DELETE = "deleted"
SOME = Principal(
    "some",
    "token",
    all_parsed([f"{one} where {OWNER} == '{OURS}'" for one in ("subscribe", "consume")]),
)
"""Who may be shown what is ours alone."""
PHASE_S = 200.0
"""By then a repartition is through when nothing is in its way."""
STEPS = 45


class MeetingLane(LaneWorld):
    """One of the lanes, in surroundings that it shares with the other."""

    def __init__(self, meeting: Meeting, number: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.meeting, self.number = meeting, number
        self.acked = 0
        """The revision of the subscriptions that it has adopted, or is to begin with."""
        self.has_all = False
        """Has it been told the whole registry? Before that it hears of no change."""
        self.life = asyncio.create_task(asyncio.sleep(0))

    def topology(self, *_: str) -> Topology:
        return self.meeting.topology

    def _hear(self, message: to_coordinator.ToCoordinator) -> None:
        super()._hear(message)
        if isinstance(message, to_coordinator.AckSubscriptions):
            self.acked = max(self.acked, message.revision)
            self.meeting.adopt()
        elif isinstance(message, to_coordinator.Claimed):
            self.meeting.claimed(self, message.owners)

    @property
    def is_running(self) -> bool:
        return not self.life.done()

    def told(self, message: from_coordinator.FromCoordinator) -> None:
        if self.session is not None and self.is_running and not self.away:
            self.session.push(message)


class MeetingGateway:
    """A gateway without its listeners: the test is its coordinator, and who connects."""

    def __init__(self, meeting: Meeting, name: str) -> None:
        r = meeting.random
        self.name = name
        self.incarnation = f"x{meeting.starts[name]}"
        self.is_away = self.is_dead = False
        self.floor = 0
        self.coordinator = FakeCoordinator(topology=meeting.topology, adopting=False)
        self._registers = self.coordinator._on_message
        self.coordinator._on_message = self._hear  # type: ignore[method-assign]
        self.meeting = meeting
        machine = ScriptedMachine(
            clock=asyncio.get_running_loop().time,
            seed=1 + GATEWAYS.index(name) + len(GATEWAYS) * meeting.starts[name],
        )
        control_, crew = Control(), Crew("gateway")
        registering = Registering(control_, crew)
        policy = r.choice([SlowPolicies(), SlowPolicies(normal="disconnect", low="disconnect")])
        self.disconnects = policy.normal == "disconnect"
        self.crew = crew
        evidence = GatewayEvidence(name, size=1_000, age_s=60.0, machine=machine)
        self.subscriptions = Subscriptions(
            name,
            Bounds(
                queue=r.choice([8, 24, 100]),
                memory_bytes=r.choice([40_000, 1 << 20]),
                when_slow=policy,
                soft_delete=meeting.soft_delete,
            ),
            control_,
            registering,
            crew=crew,
            reader=meeting.log,
            settled=meeting.checkpoints.list,
            metrics=GatewayMetrics(),
            evidence=evidence,
            machine=machine,
        )
        self.subscriptions.broadcasts._now_s = map(float, itertools.count()).__next__
        # Whom a broadcast is for takes a turn per record, and everybody else has one in between.
        consumers = Consumers(
            self.subscriptions, control_, meeting.checkpoints, ConsumerBounds(), machine=machine
        )
        recent = RecentIds(capacity=1_000, ttl_s=60.0)
        telling = Telling(evidence, self.subscriptions, consumers)
        hearing = Hearing(control_, registering, self.subscriptions, consumers, telling)
        self.deliveries = Deliveries(
            name,
            self.subscriptions,
            incarnation=self.incarnation,
            recent=recent,
            redelivered=Redelivered(capacity=10_000, ttl_s=180.0),
            evidence=evidence,
            machine=machine,
        )
        hello = to_coordinator.Hello(role="gateway", node_id=name, incarnation=self.incarnation)
        session = self.coordinator.open_session(lambda: hello)
        self.listening = asyncio.create_task(hearing.listen(session))

    def _hear(self, message: to_coordinator.ToCoordinator) -> None:
        if self.is_dead:
            return
        self._registers(message)
        if isinstance(message, to_coordinator.RegistrationComplete):
            self.coordinator.remembers = True
            mine = [one.id for one in self.meeting.registry.values() if one.gateway_id == self.name]
            if ended := [name for name in mine if self.subscriptions.get(name) is None]:
                self.meeting.unregistered(ended)  # while nobody heard of it
        elif isinstance(message, to_coordinator.Register):
            self.meeting.registered(self, message)
        elif isinstance(message, to_coordinator.Unregister):
            self.meeting.unregistered(message.ids)

    def knows(self, generation: int) -> bool:
        return any(
            isinstance(one, to_coordinator.AckTopology) and one.generation >= generation
            for one in self.coordinator.received
        )

    def publish(self, topology: Topology) -> None:
        self.coordinator.topology = topology
        if not self.is_away:
            self.coordinator.publish(topology)

    def cut_off(self, *, forgets: bool) -> None:
        self.is_away = True
        self.coordinator.disconnect()
        if forgets:
            self.coordinator.remembers = False  # until all is registered again
            self.coordinator.registry.clear()
            mine = [i for i, one in self.meeting.registry.items() if one.gateway_id == self.name]
            self.meeting.unregistered(mine)
            self.meeting.forgotten.add(self.name)
            self.meeting.publish()

    async def die(self) -> None:
        """As if its process were killed, with all that waits in it."""
        self.is_dead = self.is_away = True
        self.coordinator.disconnect()
        self.listening.cancel()
        await self.crew.close()

    def answers(self) -> None:
        """Raises PeerUnreachable where nobody does."""
        if self.is_dead:
            raise errors.PeerUnreachable("nobody listens there")

    def connect(self) -> None:
        if self.is_away and not self.is_dead:
            self.is_away = False
            self.meeting.forgotten.discard(self.name)
            self.coordinator.connect()
            assert self.coordinator.session is not None
            self.coordinator.session.push(from_coordinator.AdoptionFloor(self.floor))
            self.meeting.adopt()
            self.meeting.publish()

    def adopted(self, revision: int) -> None:
        self.floor = max(revision, self.floor)
        assert self.coordinator.session is not None
        self.coordinator.session.push(from_coordinator.AdoptionFloor(self.floor))


class Network(FakeGateways):
    """Brings batches to the real gateways, as badly as the test wants."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self.meeting = meeting
        self.answers_to_lose = 0
        self.late: set[str] = set()
        """Gateways that batches reach when their senders have given them up."""

    async def _answer(self, batch: DeliveryBatch) -> DeliveryAnswer:
        r = self.meeting.random
        if batch.gateway_id in self.late and r.random() < 0.6:
            after_s = r.choice([0.05, 1.2, 3.0, 9.0])
            asyncio.get_running_loop().call_later(after_s, self._arrives, encode_lines(batch))
            if r.random() < 0.5:
                raise errors.PeerUnreachable("the connection was reset")
            await asyncio.Event().wait()
        if batch.gateway_id in self.hanging:
            await asyncio.Event().wait()
        if self._is_stuck(batch):
            raise errors.InvalidRequest("poison")
        if delay_s := self.delays_s.get(batch.gateway_id):
            await asyncio.sleep(delay_s)
        gateway = self.meeting.gateways[batch.gateway_id]
        gateway.answers()
        answer = await self._accepted(gateway, encode_lines(batch))
        answer = replace(answer, fill=max(answer.fill, self.fills.get(batch.gateway_id, 0.0)))
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise errors.PeerUnreachable("the answer was lost")
        return answer

    async def _accepted(self, gateway: MeetingGateway, lines: bytes) -> DeliveryAnswer:
        """A lane would only try again, whatever a fault of the gateway's has left behind."""
        try:
            answer = gateway.deliveries.take(read_batch(lines))
            if isinstance(answer, DeliveryAnswer):
                return answer
            assert isinstance(answer, Coroutine)
            looking = gateway.crew.start("looking", self._slowly(answer), awaited=True)
            looking.add_done_callback(lambda _: answer.close())  # it may end before it has begun
            await asyncio.wait([looking])  # it goes on when the lane waits no longer
            gateway.answers()
            return looking.result()
        except errors.HeadgateError:
            raise
        except Exception as error:
            self.meeting.judge.finds("a gateway failed", gateway.name, repr(error))
            raise

    async def _slowly(self, work: Awaitable[DeliveryAnswer]) -> DeliveryAnswer:
        """Somebody else's turn takes its time, whenever it gives way."""
        steps = work.__await__()
        try:
            while True:
                next(steps)
                await asyncio.sleep(self.meeting.haste.choice([0, 0, 0.01, 0.3]))
        except StopIteration as ended:
            answer: DeliveryAnswer = ended.value
            return answer

    def _arrives(self, lines: bytes) -> None:
        """And nobody waits for the answer any more."""
        gateway = self.meeting.gateways[read_batch(lines).gateway_id]
        if not gateway.is_dead:
            gateway.crew.start("a late batch", self._accepted(gateway, lines), awaited=True)


class Line:
    """A connection that can be written to at once while its client reads."""

    def __init__(self, taken: Callable[[bytes], None]) -> None:
        self.open_to: LiveSubscription | None = None
        self._taken = taken

    @property
    def send(self) -> Callable[[bytes], None]:
        return self._taken

    def write(self) -> None:
        return


class Meeting:
    def __init__(self, seed: int) -> None:
        self.random = r = random.Random(seed)
        self.chance = random.Random(f"who may be shown what, {seed}")
        self.haste = random.Random(f"how long others take, {seed}")
        self.rot = random.Random(f"what the disk damages, {seed}")
        self.rots = self.rot.random() < 0.4
        self.mode = r.choice(["direct", "direct", "broadcast", "consistent_hash"])
        self.soft_delete = r.choice(["", SOFT_DELETE])
        placements: list[Placement] = ["keyed", "keyed", "keyed", "opportunistic"]
        self.topic = Topic(TOPIC, r.choice([1, 2, 3]), r.choice(placements))
        self.generation = 1
        self.forgotten: set[str] = set()
        """The gateways that the coordinator doesn't know any more: nobody sends them anything."""
        self.owners: dict[PartitionRef, int] = {
            ref: r.randrange(LANES) for ref in self.topic.refs()
        }
        self.epochs: Counter[PartitionRef] = Counter()
        self.window = 3
        self.settings = settings = {
            "window_s": 1e6,
            "batch_max_size": r.choice([1, 2, 5, 100]),
            "batch_max_bytes": r.choice([1_000, 30_000, 8 << 20, 8 << 20]),
            "redrive_every_s": 2.0,
            "mode": self.mode,
            "max_fanout": r.choice([0, 1, 3]),
            "dlq_enabled": r.random() < 0.7,
            "soft_delete": self.soft_delete,
            "queue_size": r.choice([10, 1_000]),
            "queue_bytes": r.choice([6_000, 50_000, 64 << 20, 64 << 20]),
            "breaker_timeout_s": 3.0,
            "breaker_threshold": 3,
            "buffer_timeout_s": 5.0,
            "delivery_timeout_s": 1.0,
            "retry_max_attempts": 2,
            "checkpoint_interval_s": 0.7,
            "checkpoint_event_count": 3,
            "flush_timeout_s": 2.0,
            "checkpoint_timeout_s": 2.0,
            "report_interval_s": 20.0,
        }
        self.lanes = [MeetingLane(self, number, **settings) for number in range(LANES)]
        self.formers: list[MeetingLane] = []
        """Lanes whose successors have begun, and that go on until those have taken over."""
        first = self.lanes[0]
        self.log, self.checkpoints, self.letters = first.log, first.checkpoints, first.letters
        self.net = Network(self)
        self.letters_mood, self.positions_mood = Moody(), Moody()
        for lane in self.lanes:
            self._surround(lane)
        self.judge = Judge(soft_delete=self.soft_delete, targets=TARGETS)
        self.lines: dict[Client, Line] = {}
        self.registry: dict[str, Subscription] = {}
        self.revision = 0
        self._adopting: list[tuple[MeetingGateway, int, int]] = []
        """Who waits with which revision of its own for which of the registry's."""
        self.starts: Counter[str] = Counter()
        """How often each gateway was started anew."""
        self.gateways = {name: MeetingGateway(self, name) for name in GATEWAYS}
        starts = (0,) * self.topic.partitions
        name = group_id(TOPIC, "packers")
        self.group = Group(name, TOPIC, "packers", TARGETS, starts=starts)
        self.shares = self.judge.shares
        is_granted = self.chance.random() < 0.3
        for share in self.shares:
            share.is_granted = is_granted
        self.targets: dict[int, Target] = {}
        self.target_epochs: Counter[int] = Counter()
        self.target_places: dict[int, MeetingGateway] = {}
        self.prefetch = r.choice([3, 100])
        self.under_way: asyncio.Task[None] | None = None
        """The repartition that is."""
        self.corrupt: set[tuple[PartitionRef, int]] = set()
        """Records that aren't what was appended."""
        self.lost: dict[int, tuple[int, int]] = {}
        """Of partitions whose logs lost their history, up to where that was kept, and to where they
        were moved on."""
        self.tasks: list[asyncio.Task[Any]] = []
        self.met: Counter[tuple[str, str]] = Counter()

    # --- the coordinator -------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        here = [name for name in GATEWAYS if name not in self.forgotten]
        nodes = tuple(
            Node(name, "gateway", f"http://{name}", incarnation=f"x{self.starts[name]}")
            for name in here
        )
        sources = tuple(
            Owner(ref, f"router-{lane}", self.epochs[ref]) for ref, lane in self.owners.items()
        )
        ring = GatewayRing(tuple(here)) if self.mode == "consistent_hash" else None
        return Topology(self.generation, (self.topic,), nodes, (), sources, ring=ring)

    def publish(self, topic: Topic | None = None) -> None:
        self.topic = topic or self.topic
        self.generation += 1
        topology = self.topology
        for gateway in self.gateways.values():
            gateway.publish(topology)
        for lane in self.all_lanes:
            lane.told(from_coordinator.PushTopology(topology))

    @property
    def halts(self) -> bool:
        """Is there a lane that keeps no dead letters?"""
        return not all(lane.spec.settings.dlq_enabled for lane in self.all_lanes)

    @property
    def all_lanes(self) -> list[MeetingLane]:
        return [*self.lanes, *self.formers]

    def registered(self, gateway: MeetingGateway, message: to_coordinator.Register) -> None:
        taken = [one for one in message.subscriptions if one.id in gateway.coordinator.registry]
        self.revision += 1
        for one in taken:
            self.registry[one.id] = one
            self.judge.registered(one)
        self._adopting.append((gateway, gateway.coordinator.revision, self.revision))
        self._change(from_coordinator.SubscriptionChanges(self.revision, tuple(taken), ()))
        self.adopt()

    def unregistered(self, ids: Any) -> None:
        self.revision += 1
        for name in ids:
            self.registry.pop(name, None)
        self._change(from_coordinator.SubscriptionChanges(self.revision, (), tuple(ids)))

    def _change(self, message: from_coordinator.SubscriptionChanges) -> None:
        for lane in self.all_lanes:
            if lane.has_all:
                lane.told(message)

    def adopt(self) -> None:
        running = [lane.acked for lane in self.all_lanes if lane.is_running]
        floor = min(running, default=self.revision)
        for waiting in list(self._adopting):
            gateway, revision, of_registry = waiting
            if of_registry <= floor and not gateway.is_away:
                gateway.adopted(revision)
                self._adopting.remove(waiting)

    async def repartition(self, to: int) -> None:
        """Phase by phase, as the coordinator does (decide.coordination.topics.repartitions)."""
        pause_s = self.random.choice([0.0, 0.5, 3.0])
        topic = self.topic
        self.publish(replace(topic, repartition=Repartition(to, "announced", self.generation)))
        await asyncio.sleep(pause_s)
        last = tuple(map(self.judge.head, range(topic.partitions)))
        known = (topic.original or topic.partitions) + len(topic.begins)
        begins = tuple(map(self.judge.head, range(known, to)))
        former = FormerVersion(topic.version, topic.after or (0,) * topic.partitions, last)
        topic = replace(
            topic,
            partitions=to,
            version=topic.version + 1,
            after=tuple(map(self.judge.head, range(to))),
            former=(*topic.former, former),
            original=topic.original or topic.partitions,
            begins=(*topic.begins, *begins),
            repartition=Repartition(to, "fenced", self.generation),
        )
        self.publish(topic)
        fenced = self.generation
        while not self._is_known(fenced):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)
        await asyncio.sleep(pause_s)
        self.publish(replace(topic, repartition=Repartition(to, "draining", self.generation)))
        while not all(self.settled(n) >= seq for n, seq in enumerate(last)):  # noqa: ASYNC110 - the stores tell nobody
            await asyncio.sleep(0.1)
        self.publish(replace(topic, repartition=None))

    def _is_known(self, generation: int) -> bool:
        """To every gateway that somebody may send something to."""
        here = [one for one in self.gateways.values() if one.name not in self.forgotten]
        return all(one.knows(generation) for one in here)

    # --- lanes -----------------------------------------------------------------------------------

    def _surround(self, lane: MeetingLane) -> None:
        """With what all of them share."""
        link = Link(self.random)
        lane.log, lane.gateways = self.log, self.net
        lane.letters = LinkedLetters(link, self.letters, self.letters_mood)  # type: ignore[assignment]
        lane.checkpoints = LinkedCheckpoints(link, self.checkpoints, self.positions_mood)  # type: ignore[assignment]

    def settled(self, partition: int) -> int:
        stored = self.checkpoints.stored.get(PartitionRef(TOPIC, partition))
        return 0 if stored is None else stored.settled

    async def start(self, lane: MeetingLane, *, anew: bool = True) -> None:
        """With all that it owns, under new epochs, or `anew` False, under those it has."""
        refs = [ref for ref, number in self.owners.items() if number == lane.number]
        if not refs:
            return
        self.window += 1
        if anew:
            self.epochs.update(refs)
        self.publish()
        lane.spec = replace(
            lane.spec,
            router_id=f"router-{lane.number}",
            window=self.window,
            owns=tuple(Owner(ref, f"router-{lane.number}", self.epochs[ref]) for ref in refs),
            settings=self._changed_settings(lane.spec.settings),
        )
        lane.sent.clear()
        lane.away = lane.has_all = False
        lane.start()
        lane.life.add_done_callback(lambda _: self.adopt())  # nobody waits for its word any more
        await asyncio.sleep(0.01)
        lane.acked = self.revision = self.revision + 1
        lane.has_all = True
        lane.told(
            from_coordinator.SubscriptionSnapshot(self.revision, tuple(self.registry.values()))
        )

    def _changed_settings(self, settings: LaneSettings) -> LaneSettings:
        """An operator may change his mind from one lane to the next."""
        r = self.random
        if r.random() < 0.8:
            return settings
        size = r.choice([1, 2, 5, 100])
        return replace(settings, dlq_enabled=r.random() < 0.7, batch_max_size=size)

    async def end(self, lane: MeetingLane, *, kill: bool) -> None:
        if not lane.is_running:
            if not lane.life.cancelled() and (error := lane.life.exception()) is not None:
                self.judge.finds("a lane died", lane.number, repr(error))
        elif kill:
            await lane.die()
        else:
            self.reconnect(lane)
            async with asyncio.timeout(60):
                await lane.ended()
        self.adopt()

    def reconnect(self, lane: MeetingLane) -> None:
        """It is told everything anew, and its word counts again when it has adopted that."""
        if lane.away and lane.is_running:
            lane.welcome()
            self.revision += 1
            lane.has_all = True
            lane.told(
                from_coordinator.SubscriptionSnapshot(self.revision, tuple(self.registry.values()))
            )

    def has_all_it_owns(self, lane: MeetingLane) -> bool:
        owned = {ref for ref, number in self.owners.items() if number == lane.number}
        return lane.is_running and owned <= lane.lane.holding.partitions.keys()

    async def renew(self, lane: MeetingLane, *, kill: bool) -> None:
        await self.end(lane, kill=kill)
        await self.start(lane)

    async def next_window(self, number: int) -> None:
        """The lane goes on while its successor begins, as at every change of windows."""
        former, lane = self.lanes[number], MeetingLane(self, number, **self.settings)
        if not former.is_running:
            await self.renew(former, kill=False)
            return
        self._surround(lane)
        self.lanes[number] = lane
        self.formers.append(former)
        former.told(from_coordinator.EndWindow("time", hand_over=True))
        await self.start(lane, anew=False)

    def claimed(self, lane: MeetingLane, owners: Iterable[Owner]) -> None:
        """Whoever held that is told."""
        taken = {owner.ref for owner in owners}
        for former in self.formers:
            held = tuple(one for one in former.spec.owns if one.ref in taken)
            if former is not lane and former.spec.window < lane.spec.window and held:
                former.told(from_coordinator.LetGo(held, settle=False))

    def owner(self, ref: PartitionRef) -> MeetingLane:
        return self.lanes[self.owners[ref]]

    async def reset(self, ref: PartitionRef, to: int, *, kill: bool, resync: bool = False) -> None:
        lane = self.owner(ref)
        await self.end(lane, kill=kill)
        self.checkpoints.failing = None
        self.epochs[ref] += 1
        settled = self.settled(ref.partition)
        await self.checkpoints.reset(ref, Fence(self.epochs[ref]), to, resync=resync)
        if to < settled:
            self.judge.resets.append((ref.partition, to))
        else:
            kept, moved_on_to = self.lost.get(ref.partition, (settled, 0))
            # Past what a log has lost, and nobody is told: nor who had not read all of that.
            first = min(settled, kept) if settled < moved_on_to <= to else settled
            skipped = range(first + 1, to + 1)
            self.judge.skipped.update((ref.partition, seq) for seq in skipped)
        await self.start(lane)

    async def hand_over(self, ref: PartitionRef) -> None:
        """From one lane to the other in the middle of its window, or by its death if it can't."""
        giver, taker = self.owner(ref), self.lanes[1 - self.owners[ref]]
        if giver.is_running:
            owner = Owner(ref, f"router-{giver.number}", self.epochs[ref])
            giver.told(from_coordinator.LetGo((owner,), settle=True))
            for _ in range(100):
                await asyncio.sleep(0.1)
                if any(
                    isinstance(one, to_coordinator.Released) and owner in one.owners
                    for one in giver.sent
                ):
                    break
            else:
                await giver.die()
            self.owners[ref] = taker.number
            giver.told(from_coordinator.LetGo((owner,), settle=False))
        self.owners[ref] = taker.number
        await self.renew(taker, kill=self.random.random() < 0.3)
        if not giver.is_running:
            await self.renew(giver, kill=False)

    # --- gateways --------------------------------------------------------------------------------

    async def restart(self, name: str, *, after_s: float) -> None:
        """Its process is killed, and another one takes its place: whoever was there has to come
        again, and the coordinator drops what the former one had registered."""
        dead = self.gateways[name]
        await dead.die()
        self._adopting = [one for one in self._adopting if one[0] is not dead]
        for client in self.judge.clients:
            subscriber = client.subscriber
            if subscriber is not None and dead.subscriptions.get(subscriber.id) is subscriber:
                client.subscriber = None
                self.lines.pop(client, None)
        for number, target in list(self.targets.items()):
            if self.target_places[number] is dead:
                del self.targets[number]
                target.stop()
        await asyncio.sleep(after_s)
        self.starts[name] += 1
        self.forgotten.discard(name)
        self.unregistered([i for i, one in self.registry.items() if one.gateway_id == name])
        self.gateways[name] = MeetingGateway(self, name)
        self.publish()

    # --- who writes and who reads ----------------------------------------------------------------

    def append(self, count: int) -> None:
        r = self.random
        for _ in range(count):
            self.write(r.choice(KEYS))

    @property
    def has_keys(self) -> bool:
        return self.topic.placement == "keyed"

    def write(self, key: str) -> None:
        r = self.random
        if self.has_keys:
            partition = partition_of(key, collection="", count=self.topic.partitions)
        else:
            partition = r.randrange(self.topic.partitions)
        kind, before = r.choice("xy"), r.choice("xy")
        pad = "." * r.choice([0, 0, 0, 0, 100, 3_000, 20_000])
        owner, owner_before = self.chance.choices([OURS, "them"], [3, 1], k=2)
        document: dict[str, Any] = {"kind": kind, "number": len(self.judge.written), "pad": pad}
        document[OWNER] = owner
        earlier: dict[str, Any] | None = None
        if r.random() < 0.3:
            earlier = {"kind": before, OWNER: owner_before}
            for one in (document, earlier):
                if r.random() < 0.3:
                    one[SOFT_DELETE] = True
        record = self.log.append(
            document,
            partition=partition,
            key=key if self.has_keys else None,
            op="insert" if earlier is None else "update",
            earlier=earlier,
            version=self.topic.version,
        )
        keys = (key,) if self.has_keys else ()
        self.judge.wrote(
            Written(partition, record.seq, keys, document, earlier, event_id=record.event_id)
        )

    def write_twice(self, first: Written, partition: int) -> None:
        """Its producer heard no answer, and the node that it asked next didn't know of it."""
        record = self.log.append(
            first.document,
            partition=partition,
            op="insert" if first.earlier is None else "update",
            earlier=first.earlier,
            version=self.topic.version,
            event_id=first.event_id,
        )
        self.judge.wrote(dataclasses.replace(first, partition=partition, seq=record.seq))

    def write_about(self, op: Op, collection: str, partitions: Iterable[int]) -> None:
        """What has neither a key nor, but for the new name, a document."""
        count = self.topic.partitions
        to = COLLECTIONS[1 - COLLECTIONS.index(collection)] if op == "rename" else ""
        for partition in partitions:
            record = self.log.append(
                {"to": to} if to else b"null",
                partition=partition,
                op=op,
                collection=collection,
                version=self.topic.version,
            )
            keys = tuple(
                key
                for key in KEYS
                if self.has_keys and partition_of(key, collection="", count=count) == partition
            )
            self.judge.wrote(
                Written(partition, record.seq, keys, None, says=op, about=collection, to=to)
            )

    # --- what a disk does ------------------------------------------------------------------------

    def flip(self, ref: PartitionRef, seq: int) -> None:
        """It is corrupt from now on, or what it was again."""
        if any(one.seq == seq for one in self.log.records.get(ref, ())):
            self.log.flip(ref, seq)
            self.corrupt ^= {(ref, seq)}
        else:
            self.corrupt.discard((ref, seq))

    def bring_back_letters(self) -> None:
        """From a copy that is whole."""
        stored = self.letters.stored.letters
        stored.update({id_: replace(one, damage="") for id_, one in stored.items() if one.damage})

    def restore(self) -> None:
        for ref, seq in sorted(self.corrupt):
            self.flip(ref, seq)

    async def lose_history(self, ref: PartitionRef, after_s: float) -> None:
        """Nothing is appended before its owner has moved it on behind all it gave out."""
        head = self.judge.head(ref.partition)
        kept = self.random.choice([0, self.random.randint(0, head)])
        self.log.lose_history(ref, behind=kept)
        self.corrupt = {(one, seq) for one, seq in self.corrupt if one != ref or seq <= kept}
        head = self.judge.moves_on(ref.partition)
        self.lost[ref.partition] = kept, head
        await asyncio.sleep(after_s)
        self.log.move_on(ref, head)

    async def subscribe(self, client: Client, start: Start) -> bool:
        gateway = self.gateways[client.gateway]
        wanted = [] if client.kind is None else [f"kind == '{client.kind}'"]
        wanted += [f"_collection != '{client.excludes}'"] if client.excludes else []
        where = " && ".join(wanted) or None
        question = SubscribeRequest(
            TOPIC,
            where,
            start,
            client.priority,
            name=client.name,
            principal=SOME if client.is_granted else None,
        )
        try:
            subscriber = await gateway.subscriptions.subscribe(question)
        except errors.HeadgateError:
            return False
        if gateway.is_dead:
            return False
        client.came(subscriber)
        line = Line(partial(self._took, client))
        self.lines[client] = line
        gateway.subscriptions.begin(subscriber, lambda: self._ready(client, subscriber), line)
        self.reads(client, reads=self.random.random() < 0.5)
        return True

    def _took(self, client: Client, message: bytes) -> None:
        self.judge.took(client, msgspec.json.decode(message))

    def _ready(self, client: Client, subscriber: LiveSubscription) -> None:
        if client.reads and client.subscriber is subscriber:
            self.drain(client)

    def reads(self, client: Client, *, reads: bool) -> None:
        client.reads = reads
        if (line := self.lines.get(client)) is not None:
            line.open_to = client.subscriber if reads else None
        if reads:
            self.drain(client)

    def drain(self, client: Client, count: int = 1_000_000) -> None:
        subscriber = client.subscriber
        if subscriber is None:
            return
        for _ in range(count):
            item = subscriber.take()
            if item is None:
                return
            if isinstance(item, Resync):
                place = item.partition, item.after_seq, item.from_seq
                self.judge.told(client, *place, item.reason)
            else:
                self._took(client, item.value + subscriber.tail)

    async def leave(self, client: Client) -> None:
        self.lines.pop(client, None)
        subscriber, client.subscriber = client.subscriber, None
        if subscriber is not None:
            await self.gateways[client.gateway].subscriptions.unsubscribe(subscriber)

    async def come_back(self, client: Client) -> bool:
        """With the positions that it knows, or was told when it was sent away."""
        start: Start = {number: seq + 1 for number, seq in client.positions.items()}
        subscriber = client.subscriber
        if subscriber is not None and subscriber.closing is None and self.random.random() < 0.5:
            start = parse_start(subscriber.resume_from())
        elif subscriber is not None and isinstance(subscriber.closing, errors.Overloaded):
            start = parse_start(str(subscriber.closing.details["resume"]))
        await self.leave(client)
        client.gateway = self.random.choice(GATEWAYS)
        return await self.subscribe(client, start)

    # --- the group -------------------------------------------------------------------------------

    async def open_target(self, share: Share, gateway: str) -> None:
        self.target_epochs[share.number] += 1
        owner = Owner(
            PartitionRef(self.group.id, share.number), "consumer", self.target_epochs[share.number]
        )
        here = self.gateways[gateway]
        target = Target(
            self.group,
            owner,
            subscriptions=here.subscriptions,
            checkpoints=self.checkpoints,
            prefetch=self.prefetch,
            unsure_s=30.0,
            claimant=f"{gateway} {owner.epoch}",
            principal=SOME if share.is_granted else None,
        )
        try:
            await target.open()
        except errors.HeadgateError:
            await target.close()
            return
        if here.is_dead:
            return
        share.opened()
        self.targets[share.number] = target
        self.target_places[share.number] = here
        target.begin(lambda: None)

    async def close_target(self, share: Share, *, saves: bool) -> None:
        target = self.targets.pop(share.number, None)
        if target is None:
            return
        target.stop()
        if saves:
            await self.save(target)
        await target.close()

    async def save(self, target: Target) -> None:
        try:
            await target.save()
        except errors.StorageFailed:
            return

    def consume(self, share: Share, count: int) -> None:
        target = self.targets.get(share.number)
        if target is None:
            return
        target.confirm(asyncio.get_running_loop().time())
        for _ in range(count):
            message = target.take(alone=not target.in_hand)
            if message is None:
                return
            self.judge.consumed(share, msgspec.json.decode(message))

    def acknowledge(self, share: Share, count: int) -> None:
        target = self.targets.get(share.number)
        if target is None:
            return
        positions, again = share.acknowledges(count)
        target.acknowledge(Acknowledged(positions, again, {}))

    async def tend(self, share: Share, gateway: str | None = None) -> None:
        """Open what isn't, or was closed by its gateway."""
        target = self.targets.get(share.number)
        if target is not None and target.failure is not None:
            await self.close_target(share, saves=True)
        if share.number not in self.targets:
            await self.open_target(share, gateway or self.random.choice(GATEWAYS))

    # --- what is so at the moment ----------------------------------------------------------------

    def conditions(self) -> set[str]:
        phase = self.topic.repartition
        clients = [one.subscriber for one in self.judge.clients if one.subscriber is not None]
        behind = [one for one in clients if one.closing is None and one.feed.catching_up]
        parked = [one for one in self.letters.letters if one.state == "parked"]
        true = {
            "repartitioning": phase is not None,
            "repartitioned": self.topic.version > 1,
            "parked": bool(parked),
            "parked before": any(
                self.judge.is_of_former(one.delivery.partition, one.delivery.seq, self.topic)
                for one in parked
            ),
            "dead": any(one.state == "dead" for one in self.letters.letters),
            "catching up": bool(behind),
            "gateway away": any(one.is_away for one in self.gateways.values()),
            "refusing": any(one.coordinator.refusing for one in self.gateways.values()),
            "hanging": bool(self.net.hanging),
            "late": bool(self.net.late),
            "letters fail": self.letters.failing is not None,
            "positions fail": self.checkpoints.failing is not None,
            "sent away": any(isinstance(one.closing, errors.Overloaded) for one in clients),
            "in hand": any(target.in_hand for target in self.targets.values()),
            "put back": bool(self.judge.resets),
            "lane cut off": any(one.away and one.is_running for one in self.lanes),
            "halts": self.halts,
            "broadcast": self.mode == "broadcast",
            "placed by hash": self.mode == "consistent_hash",
            "soft deletes": bool(self.soft_delete),
            "corrupt": bool(self.corrupt),
            "lost": self.judge.has_moved_on,
            "without keys": not self.has_keys,
            "granted": any(one.is_granted for one in (*self.judge.clients, *self.shares)),
        }
        return {name for name, is_so in true.items() if is_so}

    def later(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task


@dataclass
class Life:
    """What happens in one world."""

    meeting: Meeting
    said: list[str] = field(default_factory=list)

    async def live(self, steps: int = STEPS) -> None:
        await self._begin()
        names, weights = zip(*OPERATIONS.items(), strict=True)
        for _ in range(steps):
            [name] = self.meeting.random.choices(names, weights)
            for condition in self.meeting.conditions():
                self.meeting.met[name, condition] += 1
            self.said.append(f"{asyncio.get_running_loop().time():9.2f} {name}")
            self.meeting.judge.look_at(self.meeting.letters.letters)
            await getattr(self, f"_{name}")()
            await self._rot()
            self.meeting.judge.look_at(self.meeting.letters.letters)
        self.said.append(f"{asyncio.get_running_loop().time():9.2f} calm")
        await self._calm()

    async def _begin(self) -> None:
        m, r = self.meeting, self.meeting.random
        for lane in m.lanes:
            await m.start(lane)
        for share in m.shares:
            await m.open_target(share, r.choice(GATEWAYS))
        for _ in range(3):
            await self._new_client()
        m.append(r.randint(1, 30))
        await asyncio.sleep(1)

    async def _new_client(self) -> None:
        m, r = self.meeting, self.meeting.random
        priorities: list[Priority] = ["normal", "normal", "high", "low"]
        client = m.judge.new_client(
            r.choice([None, None, "x", "y"]),
            r.choice(priorities),
            r.choice(GATEWAYS),
            r.choice(["", "", COLLECTIONS[0]]),
        )
        client.is_granted = m.chance.random() < 0.4
        client.is_coming = True
        if not await m.subscribe(client, "now"):
            m.judge.clients.remove(client)
        client.is_coming = False

    def _client(self) -> Client | None:
        clients = self.meeting.judge.clients
        here = [one for one in clients if one.is_here and not one.is_coming]
        return self.meeting.random.choice(here) if here else None

    def _ref(self) -> PartitionRef:
        return self.meeting.random.choice(sorted(self.meeting.owners))

    # --- steps -----------------------------------------------------------------------------------

    async def _wait(self) -> None:
        await asyncio.sleep(self.meeting.random.choice([0.01, 0.3, 1.5, 6.0]))

    async def _append(self) -> None:
        self.meeting.append(self.meeting.random.randint(1, 12))

    async def _about(self) -> None:
        m, r = self.meeting, self.meeting.random
        ops: list[Op] = ["truncate", "drop", "rename"]
        m.write_about(r.choice(ops), r.choice(COLLECTIONS), range(m.topic.partitions))

    async def _mark(self) -> None:
        """All of an origin's history, or one change of it."""
        m, r = self.meeting, self.meeting.random
        all_ = range(m.topic.partitions)
        m.write_about("lost", "", r.choice([all_, [r.choice(all_)]]))

    async def _read(self) -> None:
        if client := self._client():
            self.meeting.drain(client, self.meeting.random.randint(1, 8))

    async def _read_at_once(self) -> None:
        if client := self._client():
            self.meeting.reads(client, reads=not client.reads)

    async def _lose_answers(self) -> None:
        self.meeting.net.answers_to_lose = self.meeting.random.randint(1, 2)

    async def _next_lane(self) -> None:
        await self.meeting.renew(self.meeting.random.choice(self.meeting.lanes), kill=False)

    async def _kill_lane(self) -> None:
        await self.meeting.renew(self.meeting.random.choice(self.meeting.lanes), kill=True)

    async def _cut_off(self) -> None:
        lane = self.meeting.random.choice(self.meeting.lanes)
        if lane.is_running and lane.has_all and not lane.away:
            lane.has_all = False
            lane.cut_off()

    async def _reconnect(self) -> None:
        for lane in self.meeting.lanes:
            self.meeting.reconnect(lane)

    async def _next_window(self) -> None:
        await self.meeting.next_window(self.meeting.random.randrange(LANES))

    async def _hand_over(self) -> None:
        await self.meeting.hand_over(self._ref())

    async def _reset(self) -> None:
        m, r, ref = self.meeting, self.meeting.random, self._ref()
        if settled := m.settled(ref.partition):
            await m.reset(ref, r.randint(0, settled - 1), kill=r.random() < 0.3)

    async def _skip(self) -> None:
        m, r, ref = self.meeting, self.meeting.random, self._ref()
        await m.end(m.owner(ref), kill=False)
        head, settled = m.judge.head(ref.partition), m.settled(ref.partition)
        if settled < head and r.random() < 0.5:
            to = r.randint(settled + 1, head)
            await m.reset(ref, to, kill=False, resync=r.random() < 0.5)
        else:
            await m.start(m.owner(ref))

    async def _repartition(self) -> None:
        m, r = self.meeting, self.meeting.random
        if m.under_way is not None and not m.under_way.done():
            return
        to = r.choice([n for n in range(1, MOST_PARTITIONS + 1) if n != m.topic.partitions])
        news = [PartitionRef(TOPIC, n) for n in range(to) if PartitionRef(TOPIC, n) not in m.owners]
        for ref in news:
            m.owners[ref] = r.randrange(LANES)
        m.under_way = m.later(m.repartition(to))
        for lane in {m.owner(ref).number for ref in news}:
            await m.renew(m.lanes[lane], kill=r.random() < 0.3)

    async def _poison(self) -> None:
        m, r = self.meeting, self.meeting.random
        most = max((m.judge.head(ref.partition) for ref in m.owners), default=0)
        m.net.poison.add((r.choice(GATEWAYS), r.randint(1, most + 3)))

    async def _heal(self) -> None:
        self.meeting.net.poison.clear()

    async def _retry(self) -> None:
        m = self.meeting
        dead = [one for one in m.letters.letters if one.state == "dead"]
        for one in dead:
            m.judge.retried[one.delivery.partition, one.delivery.seq] += 1
        if dead:
            now_ms = round(asyncio.get_running_loop().time() * 1000)
            await m.letters.revive([one.id for one in dead], now_ms=now_ms)
            for lane in m.lanes:
                lane.told(from_coordinator.LettersRevived())

    async def _delete(self) -> None:
        dead = [one.id for one in self.meeting.letters.letters if one.state == "dead"][:1]
        await self.meeting.letters.delete(dead)

    async def _rot(self) -> None:
        """In some lives the disk damages letters, which are given up, or brought back."""
        m, r = self.meeting, self.meeting.rot
        if not m.rots or r.random() > 0.5:
            return
        stored = m.letters.stored.letters
        parked = [one for one in stored.values() if one.state == "parked"]
        damaged = [one for one in parked if one.damage]
        what = r.choice([*["spoils"] * 6, "is brought back", "is given up"])
        if what == "spoils" and parked:
            one = r.choice(parked[:2])  # there is something behind it
            stored[one.id] = replace(one, damage="a bit has flipped")
            m.met["damage", "parked"] += 1
        elif what == "is brought back":
            m.bring_back_letters()
        elif what == "is given up" and damaged and not damaged[0].delivery.broadcast:
            m.judge.look_at([replace(damaged[0], state="dead")])  # nobody is told of it
            await m.letters.delete([damaged[0].id])

    async def _come(self) -> None:
        if len([one for one in self.meeting.judge.clients if one.is_here]) < 5:
            await asyncio.wait([self.meeting.later(self._new_client())], timeout=3)

    async def _leave(self) -> None:
        if len(self.meeting.judge.clients) > 2 and (client := self._client()):
            self.meeting.judge.clients.remove(client)
            await self.meeting.leave(client)

    async def _come_back(self) -> None:
        m, r = self.meeting, self.meeting.random
        away = [one for one in m.judge.clients if not one.is_here and not one.is_coming]
        client = r.choice(away) if away else self._client()
        if client is not None:
            await asyncio.wait([self._back(client)], timeout=r.choice([0, 3]))

    def _back(self, client: Client) -> asyncio.Task[Any]:
        client.is_coming = True
        return self.meeting.later(self._comes_back(client))

    async def _comes_back(self, client: Client) -> None:
        try:
            await self.meeting.come_back(client)
        finally:
            client.is_coming = False

    async def _hang(self) -> None:
        self.meeting.net.hanging.add(self.meeting.random.choice(GATEWAYS))

    async def _unhang(self) -> None:
        self.meeting.net.hanging.clear()

    async def _delay(self) -> None:
        self.meeting.net.late ^= {self.meeting.random.choice(GATEWAYS)}

    async def _slow(self) -> None:
        r = self.meeting.random
        self.meeting.net.delays_s[r.choice(GATEWAYS)] = r.choice([0.0, 0.2, 0.9])

    async def _fill(self) -> None:
        r = self.meeting.random
        self.meeting.net.fills[r.choice(GATEWAYS)] = r.choice([0.0, 0.75, 0.95])

    async def _letters_fail(self) -> None:
        fails = self.meeting.random.random() < 0.4
        self.meeting.letters.failing = errors.StorageFailed("away") if fails else None

    async def _stores_ail(self) -> None:
        m, r = self.meeting, self.meeting.random
        moods: list[StoreMood] = ["well", "well", "losing", "hanging", "shaky"]
        m.letters_mood.mood, m.positions_mood.mood = r.choice(moods), r.choice(moods)

    async def _positions_fail(self) -> None:
        fails = self.meeting.random.random() < 0.3
        self.meeting.checkpoints.failing = errors.StorageFailed("away") if fails else None

    async def _retention(self) -> None:
        m, ref = self.meeting, self._ref()
        m.log.keep_from(ref, m.random.randint(1, m.settled(ref.partition) + 1))

    async def _hole(self) -> None:
        m, ref = self.meeting, self._ref()
        lane = m.owner(ref)
        if ref.partition >= m.topic.partitions or not lane.is_running:
            return
        if ref in lane.lane.holding.partitions:
            m.append(8)
            head = m.judge.head(ref.partition)
            gone = range(head - 1, head + m.random.choice([0, 1]))
            if gone[0] > max(lane.lane.holding.read_seq(ref), m.settled(ref.partition)):
                m.log.lose(ref, gone)

    async def _twice(self) -> None:
        m, r = self.meeting, self.meeting.random
        found = [one for one in m.judge.written[-10:] if one.event_id]
        if m.has_keys or not found:
            return
        first = r.choice(found)
        had = {one.partition for one in m.judge.written if one.event_id == first.event_id}
        if others := sorted(set(range(m.topic.partitions)) - had):
            m.write_twice(first, r.choice(others))

    async def _corrupt(self) -> None:
        m, r = self.meeting, self.meeting.random
        ref = self._ref()
        if m.random.random() < 0.4:
            m.append(r.randint(1, 6))
        whole = [one.seq for one in m.log.records.get(ref, ()) if one.document != b"null"]
        if whole:
            m.flip(ref, r.choice(whole[-6:]))

    async def _restore(self) -> None:
        self.meeting.restore()

    async def _pass_corrupt(self) -> None:
        """As the partition's state says that an operator should."""
        m = self.meeting
        for ref, seq in sorted(m.corrupt):
            if m.settled(ref.partition) == seq - 1:
                await m.reset(ref, seq, kill=m.random.random() < 0.3, resync=True)
                return

    async def _lose_history(self) -> None:
        m, ref = self.meeting, self._ref()
        if m.log.records.get(ref):
            await m.lose_history(ref, m.random.choice([0.0, 0.5, 3.0]))

    async def _forget(self) -> None:
        gateway = self.meeting.gateways[self.meeting.random.choice(GATEWAYS)]
        if not gateway.is_away:
            gateway.cut_off(forgets=self.meeting.random.random() < 0.7)

    async def _remember(self) -> None:
        for gateway in self.meeting.gateways.values():
            gateway.connect()

    async def _restart(self) -> None:
        m, r = self.meeting, self.meeting.random
        name, after_s = r.choice(GATEWAYS), r.choice([0.0, 0.5, 8.0])
        if not m.gateways[name].is_dead:
            await asyncio.wait([m.later(m.restart(name, after_s=after_s))], timeout=1)

    async def _refuse(self) -> None:
        r = self.meeting.random
        coordinator = self.meeting.gateways[r.choice(GATEWAYS)].coordinator
        coordinator.refusing = "the quota is used up" if r.random() < 0.4 else None

    async def _consume(self) -> None:
        m, r = self.meeting, self.meeting.random
        share = r.choice(m.shares)
        if task := self._tend(share):
            await asyncio.wait([task], timeout=r.choice([0, 3]))
        m.consume(share, r.randint(1, 12))

    def _tend(self, share: Share) -> asyncio.Task[Any] | None:
        if share.is_opening:
            return None
        share.is_opening = True
        return self.meeting.later(self._tends(share))

    async def _tends(self, share: Share) -> None:
        try:
            await self.meeting.tend(share)
        finally:
            share.is_opening = False

    async def _acknowledge(self) -> None:
        m, r = self.meeting, self.meeting.random
        share = r.choice(m.shares)
        m.acknowledge(share, r.randint(1, 20))
        if (target := m.targets.get(share.number)) is not None:
            await m.save(target)

    async def _move_target(self) -> None:
        m, r = self.meeting, self.meeting.random
        share = r.choice(m.shares)
        if not share.is_opening:
            share.is_opening = True
            await m.close_target(share, saves=r.random() < 0.5)
            await asyncio.wait([m.later(self._tends(share))], timeout=3)

    # --- the end ---------------------------------------------------------------------------------

    async def _calm(self) -> None:
        m, r = self.meeting, self.meeting.random
        m.net.poison.clear()
        m.net.hanging.clear()
        m.net.late.clear()
        m.net.fills.clear()
        m.net.delays_s.clear()
        m.net.answers_to_lose = 0
        m.letters.failing = m.checkpoints.failing = None
        m.letters_mood.mood = m.positions_mood.mood = "well"
        m.bring_back_letters()
        m.restore()
        for gateway in m.gateways.values():
            gateway.coordinator.refusing = None
            gateway.connect()
        for lane in m.all_lanes:
            m.reconnect(lane)
        await self._read_for(5)
        for lane in list(m.lanes):
            if not m.has_all_it_owns(lane):  # what it couldn't claim is given out anew
                await m.renew(lane, kill=False)
        await self._read_for(30)
        await self._finish_repartition()
        clients = list(m.judge.clients)
        one_is_slow = len(clients) > 1 and r.random() < 0.6 and not m.halts
        slow = r.choice(clients) if one_is_slow else None
        for client in clients:
            m.reads(client, reads=client is not slow)
        await self._read_for(40, without=slow)
        first = len(m.judge.written)
        for key in KEYS:
            m.write(key)
        await self._read_for(60, without=slow)
        m.judge.look_at(m.letters.letters)
        m.judge.probed(first, [one for one in m.judge.clients if one is not slow])
        counted = {one.name: len(one.got) for one in clients}
        await self._read_for(120, without=slow)
        for client in clients:
            if client is not slow and len(client.got) != counted[client.name]:
                m.judge.finds("goes on and on", client.name, client.got[counted[client.name] :][:9])
        await self._read_for(180)
        m.judge.look_at(m.letters.letters)
        self._judge_places()
        m.judge.judge()
        await self._end()

    async def _finish_repartition(self) -> None:
        m = self.meeting
        for _ in range(round(PHASE_S / 10)):
            if m.under_way is None or m.under_way.done():
                break
            await self._read_for(10)
        else:
            m.judge.finds("a repartition hangs", m.topic.repartition)
        if m.under_way is not None and m.under_way.done():
            m.under_way.result()

    async def _read_for(self, seconds: int, *, without: Client | None = None) -> None:
        """Everybody reads, comes back and acknowledges, but for one."""
        m = self.meeting
        for _ in range(seconds):
            await asyncio.sleep(1)
            for client in list(m.judge.clients):
                if not client.is_here and not client.is_coming:
                    self._back(client)
                elif client is not without:
                    m.drain(client)
            for share in m.shares:
                if share.number not in m.targets or m.targets[share.number].failure is not None:
                    self._tend(share)
                    continue
                m.consume(share, 1_000)
                m.acknowledge(share, 1_000)
                await m.save(m.targets[share.number])

    def _judge_places(self) -> None:
        m = self.meeting
        for lane in m.lanes:
            wanted = any(number == lane.number for number in m.owners.values())
            if wanted and not lane.is_running:
                m.judge.finds("a lane is dead", lane.number, lane.life)
        for lane in m.formers:
            if lane.is_running:
                m.judge.finds("a former lane goes on", lane.number, lane.lane.holding.fences())
        parked = [one for one in m.letters.letters if one.state == "parked"]
        if parked:
            whose = [(one.gateway_id, one.reason, one.error, one.delivery.seq) for one in parked]
            m.judge.finds("parked", whose[:4])
        for ref in m.owners:
            head, settled = m.judge.head(ref.partition), m.settled(ref.partition)
            if settled != head:
                m.judge.finds("unsettled", str(ref), settled, head)
        for lane in m.lanes:
            for report in [one for one in lane.sent if isinstance(one, LaneReport)][-1:]:
                waiting = [one for one in report.links if one.waiting]
                stuck = [one for one in report.partitions if one.parked or one.state != "flowing"]
                if lane.is_running and (waiting or stuck or report.letters):
                    m.judge.finds("left in a lane", lane.number, waiting, stuck, report.letters)
        for gateway in m.gateways.values():
            subscriptions = gateway.subscriptions
            left = (
                subscriptions.budget.taken_bytes,
                subscriptions.totals.depth,
                subscriptions.held,
            )
            if any(left):
                m.judge.finds("left in a gateway", gateway.name, left)

    async def _end(self) -> None:
        m = self.meeting
        for lane in m.all_lanes:
            await m.end(lane, kill=True)
        for gateway in m.gateways.values():
            gateway.listening.cancel()
        for task in m.tasks:
            task.cancel()
        outcomes = await asyncio.gather(*m.tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                m.judge.finds("a task died", repr(outcome))


OPERATIONS: Mapping[str, float] = defaultdict(
    lambda: 1.0,
    {
        "wait": 6,
        "append": 6,
        "read": 4,
        "about": 2,
        "mark": 1.5,
        "read_at_once": 2,
        "consume": 4,
        "acknowledge": 3,
        "reset": 2,
        "retry": 2,
        "come_back": 4,
        "forget": 2,
        "remember": 2,
        "repartition": 3,
        "next_lane": 1,
        "next_window": 2,
        "cut_off": 1,
        "reconnect": 1,
        "kill_lane": 1,
        "hand_over": 2,
        "skip": 0.5,
        "lose_answers": 1,
        "poison": 1,
        "heal": 1,
        "delete": 1,
        "come": 1,
        "leave": 0.7,
        "hang": 1,
        "unhang": 1,
        "slow": 1,
        "delay": 1,
        "fill": 1,
        "letters_fail": 1,
        "positions_fail": 1,
        "stores_ail": 2,
        "retention": 1,
        "hole": 1,
        "corrupt": 1,
        "restore": 0.7,
        "pass_corrupt": 0.7,
        "lose_history": 0.4,
        "twice": 2,
        "refuse": 1.5,
        "restart": 1.5,
        "move_target": 1.5,
    },
)
"""What may happen, and how often."""


SMALL: Mapping[tuple[Any, str], tuple[int, ...]] = {
    (delivering, "REMEMBERED"): (12, 60),
    (letters, "CAPACITY"): (2, 10),
    (redriving, "FEW"): (0, 3),
    (pacing, "AHEAD"): (2, 10),
    (letters_at_once, "LETTERS_MAX"): (4, 20),
    (reading, "TURN"): (1, 5),
}
"""Bounds that so little as there is here would never meet."""


@contextlib.contextmanager
def small_bounds(random: random.Random) -> Iterator[None]:
    """Some of them so low that they are met."""
    with contextlib.ExitStack() as patches:
        for (module, name), values in SMALL.items():
            if random.random() < 0.4:
                patches.enter_context(patch.object(module, name, random.choice(values)))
        yield


async def life(seed: int) -> Life:
    one = Life(Meeting(seed))
    asyncio.get_running_loop().set_exception_handler(
        lambda _, what: one.meeting.judge.finds("nobody hears of", what)
    )
    with small_bounds(one.meeting.random):
        await one.live()
    return one


def lived(seed: int) -> Life:
    return run_virtual(life(seed))


say = print


def main(first: int, last: int, *, tells: bool) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    bad = 0
    met: Counter[tuple[str, str]] = Counter()
    for seed in range(first, last):
        one = lived(seed)
        met += one.meeting.met
        if tells:
            say(*one.said, sep="\n")
        if found := one.meeting.judge.found:
            bad += 1
            say(seed, *found[:5], sep="\n    ", flush=True)
    say(f"{last - first} lives, {bad} bad, {len(met)} pairs met")
    return bad


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), tells="-v" in sys.argv)))
