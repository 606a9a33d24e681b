"""A small cluster around several lanes, on virtual time, in which everything goes wrong by chance.

One topic of a few partitions, three gateways, subscriptions that come and go, a coordinator that
tells lanes what it must, and lanes that follow each other or run at once: overtaken, frozen,
killed, handed off. All chance comes from one seed. When the faults are over, everything is let run,
and every pair of record and subscription must be accounted for; what is changed in a store is
judged at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from headgate.adapters.memory.control import MemoryControlSession
from headgate.adapters.memory.delivery import MemoryDeliveryTransport, MemoryGateways
from headgate.adapters.memory.log import MemoryLog
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.lane.run import Lane, LanePorts
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.model.event import Fence, PartitionRef, Record
from headgate.model.lanes import LaneSettings, LaneSpec, Mode
from headgate.model.subscription import Priority, Subscription
from headgate.model.topology import GatewayRing, Node, Owner, Topology
from headgate.ports.control import HelloSource
from headgate.ports.letters import LetterStore
from headgate.ports.transport import Meanwhile
from tests.lane.faulty_stores import (
    JudgedCheckpoints,
    JudgedLetters,
    Link,
    LinkedCheckpoints,
    LinkedLetters,
    Moody,
)
from tests.lane.ledger import Ledger, Place, Standing
from tests.lane.modelled_gateways import ModelledGateway, Subscriber
from tests.written_log import TOPIC, WrittenLog

KINDS = ("red", "blue")
PARTITIONS = 2
GATEWAYS = ("gateway-1", "gateway-2", "gateway-3")
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")
MODES: tuple[Mode, ...] = ("direct", "direct", "consistent_hash", "broadcast")
QUIET_S = 40.0
"""How long everything is let run after the faults."""
SETTINGS: dict[str, Any] = {
    "window_s": 1e6,
    "read_limit": 4,
    "batch_max_size": 3,
    "queue_size": 12,
    "delivery_timeout_s": 1.0,
    "retry_max_attempts": 2,
    "breaker_threshold": 3,
    "breaker_timeout_s": 3.0,
    "buffer_timeout_s": 5.0,
    "redrive_every_s": 2.0,
    "checkpoint_interval_s": 0.7,
    "checkpoint_event_count": 3,
    "flush_timeout_s": 2.0,
    "checkpoint_timeout_s": 2.0,
    "report_interval_s": 20.0,
}


class LinkedLog(MemoryLogReader):
    """What one lane sees of the log: all of it, while the lane is there."""

    def __init__(self, link: Link, stored: MemoryLog) -> None:
        super().__init__(stored)
        self._link = link

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        await self._link.pass_through()
        found = await super().read(ref, after_seq=after_seq, limit=limit)
        await self._link.pass_through()
        return found


class LinkedTransport(MemoryDeliveryTransport):
    """One lane's way to the gateways."""

    def __init__(self, link: Link, gateways: MemoryGateways) -> None:
        super().__init__(gateways)
        self._link = link

    async def deliver(
        self,
        url: str,
        batch: DeliveryBatch,
        *,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        await self._link.pass_through()
        await asyncio.sleep(self._link.random.choice([0.0, 0.002, 0.03]))
        await self._link.pass_through()
        answer = await super().deliver(url, batch, timeout_s=timeout_s, meanwhile=meanwhile)
        await self._link.pass_through()
        return answer


@dataclass(eq=False)
class Run:
    """A lane and what the coordinator knows of it."""

    lane: Lane
    life: asyncio.Task[None]
    link: Link
    fences: dict[PartitionRef, Fence]
    session: MemoryControlSession | None = None
    revision: int = 0
    claimed: set[PartitionRef] = field(default_factory=set)
    released: set[PartitionRef] = field(default_factory=set)
    unclaimed: set[PartitionRef] = field(default_factory=set)
    """What it could not claim when it began, and doesn't try again."""
    killed: bool = False


class PromiseWorld:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = ScriptedMachine(clock=asyncio.get_running_loop().time)
        self.ledger = Ledger()
        self.log = WrittenLog()
        self.letters = JudgedLetters(self.ledger)
        self.checkpoints = JudgedCheckpoints(self.ledger, self.letters)
        self.letters_moody, self.checkpoints_moody = Moody(), Moody()
        self.refs = [PartitionRef(TOPIC, number) for number in range(PARTITIONS)]
        self.keeps_dead = self.random.random() < 0.6
        self.mode = self.random.choice(MODES)
        self.settings = LaneSettings(mode=self.mode, dlq_enabled=self.keeps_dead, **SETTINGS)
        self.ledger.everywhere = {self.mode, "dead letters" if self.keeps_dead else "halts"}
        self.gateways: dict[str, ModelledGateway] = {}
        self.reachable = MemoryGateways()
        self.generation = 0
        self.revision = 0
        self.incarnations = self.names = 0
        self.registry: dict[str, Subscription] = {}
        self.runs: list[Run] = []
        self.owner: dict[PartitionRef, Run] = {}
        self.fence: dict[PartitionRef, Fence] = {ref: Fence(5, 1, 0) for ref in self.refs}
        self.changing: set[asyncio.Task[None]] = set()
        """What goes on beside the steps."""
        self.waiting: list[asyncio.Task[None]] = []
        """Subscribers who wait for the lanes to know of them."""

    # --- the coordinator -------------------------------------------------------------------------

    def topology(self) -> Topology:
        here = sorted(self.gateways)
        ring = GatewayRing(GATEWAYS) if self.mode == "consistent_hash" else None
        nodes = tuple(Node(name, "gateway", self.gateways[name].url) for name in here)
        return Topology(self.generation, nodes=nodes, ring=ring)

    def push(self, message: from_coordinator.FromCoordinator) -> None:
        for run in self.runs:
            if run.session is not None:
                run.session.push(message)

    def publish(self) -> None:
        self.generation += 1
        self.push(from_coordinator.PushTopology(self.topology()))

    def snapshot(self) -> from_coordinator.SubscriptionSnapshot:
        return from_coordinator.SubscriptionSnapshot(self.revision, tuple(self.registry.values()))

    def change(self, *upserts: Subscription, removals: tuple[str, ...] = ()) -> None:
        self.revision += 1
        for name in removals:
            self.registry.pop(name, None)
        self.registry.update((one.id, one) for one in upserts)
        self.push(from_coordinator.SubscriptionChanges(self.revision, upserts, removals))

    def forget(self, *names: str) -> None:
        """Tell lanes of those that have ended, unless they have come back."""
        self.change(removals=tuple(n for n in names if n not in self.ledger.standing))

    def adopted(self, revision: int) -> bool:
        """Has every lane that may still settle records taken it up? Until the last one has claimed,
        the one before it may."""
        return all(
            (run := self.owner.get(ref)) is not None
            and ref in run.claimed
            and run.revision >= revision
            for ref in self.refs
        )

    def _heard(self, run: Run, message: to_coordinator.ToCoordinator) -> None:
        if isinstance(message, to_coordinator.AckSubscriptions):
            run.revision = max(run.revision, message.revision)
        elif isinstance(message, to_coordinator.MayClaim):
            assert run.session is not None
            run.session.push(from_coordinator.ClaimNow(message.number))
        elif isinstance(message, to_coordinator.Claimed):
            owners = {owner.ref for owner in message.owners}
            if not run.claimed:
                run.unclaimed = run.fences.keys() - owners
            run.claimed |= owners
        elif isinstance(message, to_coordinator.Released):
            run.released |= {owner.ref for owner in message.owners}

    # --- lanes -----------------------------------------------------------------------------------

    def start(self, refs: list[PartitionRef], *, higher: str = "window") -> None:
        """A lane of its own for these partitions, under a higher fence than anybody's."""
        top = max(self.fence[ref] for ref in refs)
        fence = {
            "window": Fence(top.epoch, top.window + 1, 0),
            "attempt": Fence(top.epoch, top.window, top.attempt + 1),
            "epoch": Fence(top.epoch + 1, 1, 0),
        }[higher]
        for ref in refs:
            self.fence[ref] = fence
        spec = LaneSpec(
            router_id=f"router-{fence.epoch}",
            incarnation="a",
            lane=0,
            window=fence.window,
            attempt=fence.attempt,
            assignment=1,
            owns=tuple(Owner(ref, f"router-{fence.epoch}", fence.epoch) for ref in refs),
            coordinator="nowhere:0",
            data="nowhere",
            settings=self.settings,
        )
        link = Link(random.Random(self.random.random()))
        letters = LinkedLetters(link, self.letters, self.letters_moody)
        checkpoints = LinkedCheckpoints(link, self.checkpoints, self.checkpoints_moody)
        ports = LanePorts(
            LinkedLog(link, self.log.stored),
            checkpoints,
            cast("LetterStore", letters),
            LinkedTransport(link, self.reachable),
            lambda hello: self._connect(run, hello),
            self.machine,
        )
        lane = Lane(spec, ports)
        life = asyncio.get_running_loop().create_task(lane.run())
        run = Run(lane, life, link, dict.fromkeys(refs, fence))
        self.runs.append(run)
        for ref in refs:
            self.owner[ref] = run

    def _connect(self, run: Run, hello: HelloSource) -> MemoryControlSession:
        run.session = MemoryControlSession(hello, lambda message: self._heard(run, message))
        self._welcome(run)
        return run.session

    def _welcome(self, run: Run) -> None:
        assert run.session is not None
        run.claimed |= {owner.ref for owner in run.session.connect().owns}
        run.session.push(from_coordinator.Welcome("coordinator-1", 30_000, 1_000))
        run.session.push(from_coordinator.PushTopology(self.topology()))
        run.session.push(self.snapshot())

    def owns_something(self, run: Run) -> bool:
        return run in self.owner.values()

    def unsettled(self, *refs: PartitionRef) -> list[Place]:
        return [
            (ref.partition, seq)
            for ref in refs
            for seq in range(self.checkpoints.position(ref) + 1, self.head(ref) + 1)
        ]

    def kill(self, run: Run) -> None:
        """Nothing of it is ever seen again, and nobody cleans up after it."""
        run.link.dead = run.killed = True
        run.link.thawed.set()
        if run.session is not None:
            run.session.cut()
        run.life.cancel()

    def freeze(self, run: Run) -> None:
        """It stands still, and the coordinator hears nothing of it."""
        run.link.thawed.clear()
        if run.session is not None:
            run.session.cut()

    def thaw(self, run: Run) -> None:
        """It goes on; if nobody has overtaken it, the coordinator takes it back."""
        run.link.thawed.set()
        if run.session is None or run.session.closed or run.killed:
            return
        if self.owns_something(run):
            self._welcome(run)
        elif self.random.random() < 0.5:
            run.session.connect()
            run.session.push(from_coordinator.Refused("somebody newer is there"))

    # --- producers and subscribers ---------------------------------------------------------------

    def head(self, ref: PartitionRef) -> int:
        return self.log.stored.partition(ref).state.head

    def heads(self) -> dict[int, int]:
        return {ref.partition: self.head(ref) for ref in self.refs}

    def append(self, ref: PartitionRef, count: int = 1) -> None:
        for _ in range(count):
            kind = self.random.choice(KINDS)
            record = self.log.append({"kind": kind}, partition=ref.partition)
            self.ledger.kinds[ref.partition, record.seq] = kind

    def in_log(self, partition: int, seq: int) -> bool:
        stored = self.log.stored.partition(PartitionRef(TOPIC, partition))
        return bool(stored.read(after_seq=seq - 1, up_to_seq=seq, limit=1))

    def subscribe(self, gateway_id: str, *, name: str = "", like: str | None = None) -> str:
        """Somebody comes, or comes back: under another id or the same, elsewhere or not."""
        self.names += 1
        name = name or f"s{self.names}.x"
        kind = self.random.choice([None, None, *KINDS]) if like is None else like or None
        subscription = Subscription(
            name,
            gateway_id,
            TOPIC,
            where=None if kind is None else f"kind == '{kind}'",
            priority=self.random.choice(PRIORITIES),
        )
        self.ledger.standing[name] = Standing(subscription, kind)
        when_slow = "drop_oldest" if self.random.random() < 0.15 else "park"
        self.gateways[gateway_id].subscribers[name] = Subscriber(when_slow=when_slow)  # type: ignore[arg-type]
        self.change(subscription)
        gateway = self.gateways[gateway_id]
        self.helper(self._release(name, gateway, self.revision), changes=False)
        return name

    async def _release(self, name: str, gateway: ModelledGateway, revision: int) -> None:
        mine = gateway.subscribers[name]
        while not self.adopted(revision):
            if gateway.subscribers.get(name) is not mine:
                return
            await asyncio.sleep(0.05)
        if gateway.subscribers.get(name) is mine:
            gateway.release(name, self.heads())

    def leave(self, name: str) -> Standing:
        """It ends at its gateway at once; lanes hear of it when somebody tells them."""
        one = self.ledger.standing.pop(name)
        gateway = self.gateways.get(one.subscription.gateway_id)
        if gateway is not None:
            gateway.subscribers.pop(name, None)
            gateway.slow_readers.discard(name)
        return one

    def helper(self, work: Coroutine[Any, Any, None], *, changes: bool = True) -> None:
        task = asyncio.get_running_loop().create_task(work)
        if changes:
            self.changing.add(task)
        else:
            self.waiting.append(task)

    def tag_unsettled(self, what: str, *refs: PartitionRef) -> None:
        self.ledger.tag(what, *self.unsettled(*(refs or self.refs)))

    # --- gateways --------------------------------------------------------------------------------

    def appear(self, gateway_id: str) -> None:
        """It is there, without memory, at an address of its own."""
        self.incarnations += 1
        url = f"http://{gateway_id}/{self.incarnations}"
        chance = random.Random(self.random.random())
        gateway = ModelledGateway(gateway_id, url, self.ledger, self.in_log, chance)
        self.gateways[gateway_id] = gateway
        self.reachable.listening[url] = gateway.deliver

    def vanish(self, gateway_id: str) -> None:
        """It is gone with all its subscriptions; lanes hear of the two in some order."""
        gone = [n for n, s in self.registry.items() if s.gateway_id == gateway_id]
        for name in gone:
            if name in self.ledger.standing:
                self.leave(name)
        del self.reachable.listening[self.gateways.pop(gateway_id).url]
        self.ledger.tag("vanished", *self.unsettled(*self.refs))

        async def tell() -> None:
            steps: list[Callable[[], None]] = [self.publish, lambda: self.forget(*gone)]
            self.random.shuffle(steps)
            steps[0]()
            await asyncio.sleep(self.random.choice([0.0, 0.5, 3.0]))
            steps[1]()

        self.helper(tell())
