"""A lane with all around it in the test's hands: log, checkpoints, gateways, coordinator."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from headgate.adapters.embedded.notes import FileLaneNotes
from headgate.adapters.memory.control import MemoryControlSession
from headgate.adapters.memory.delivery import MemoryDeliveryTransport
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.delivery.parts import ref_of
from headgate.errors import HeadgateError, InvalidRequest, StorageFailed
from headgate.lane.run import Lane, LanePorts
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.delivery import Delivery, DeliveryAnswer, DeliveryBatch, Verdict
from headgate.model.event import Fence, PartitionRef
from headgate.model.lanes import LaneSettings, LaneSpec, LaneTally
from headgate.model.letters import Letter, LetterState, NewLetter
from headgate.model.position import Position, Tally
from headgate.model.subscription import Subscription
from headgate.model.topology import Node, Owner, Topic, Topology
from headgate.ports.control import HelloSource
from headgate.ports.letters import NO_SEQS, Fences
from headgate.ports.notes import LaneNotes, NoNotes
from headgate.ports.transport import Meanwhile
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC, WrittenLog

Scenario = Callable[[], Coroutine[Any, Any, None]]


def on_virtual_time(scenario: Scenario) -> Callable[[], None]:
    """A test whose clock jumps from timer to timer."""

    def test() -> None:
        run_virtual(scenario())

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    return test


class FaultyLetters(MemoryLetterStore):
    """Letters in memory; while `failing` is set, whatever a lane wants raises it."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: Exception | None = None
        self.looked = 0
        """How often somebody looked for parked letters."""
        self.takes_s: dict[PartitionRef, float] = {}
        """How long it takes to find what is parked of these."""
        self.damaged: set[int] = set()
        """The ids of letters that nobody can read, nor what is read with them."""

    @property
    def letters(self) -> list[Letter]:
        return list(self.stored.letters.values())

    @property
    def again(self) -> set[int]:
        """Those that an operator wants to be sent again."""
        return {one.id for one in self.letters if one.state == "parked"} & self.stored.again

    def of(self, state: LetterState, gateway_id: str = "gateway-1") -> list[Letter]:
        return [one for one in self.letters if one.state == state and one.gateway_id == gateway_id]

    def seqs(self, state: LetterState, gateway_id: str = "gateway-1") -> list[int]:
        return sorted(letter.delivery.seq for letter in self.of(state, gateway_id))

    async def claim(self, fences: Fences) -> dict[str, frozenset[PartitionRef]]:
        self._check()
        return await super().claim(fences)

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        self._check()
        await super().put(letters, fences, now_ms=now_ms)

    async def parked(
        self,
        gateway_id: str,
        refs: Iterable[PartitionRef],
        *,
        each: int,
        after_seqs: Mapping[PartitionRef, int] = NO_SEQS,
    ) -> list[Letter]:
        self._check()
        self.looked += 1
        wanted = list(refs)
        if takes_s := max((self.takes_s.get(ref, 0.0) for ref in wanted), default=0.0):
            await asyncio.sleep(takes_s)
        found = await super().parked(gateway_id, wanted, each=each, after_seqs=after_seqs)
        return self._readable(found)

    async def revived(
        self, refs: Iterable[PartitionRef], *, after_id: int, limit: int
    ) -> list[Letter]:
        self._check()
        return self._readable(await super().revived(refs, after_id=after_id, limit=limit))

    async def remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        self._check()
        await super().remove(letters, fences)

    async def bury(self, letters: Sequence[Letter], fences: Fences, *, now_ms: int) -> None:
        self._check()
        await super().bury(letters, fences, now_ms=now_ms)

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing

    def _readable(self, found: list[Letter]) -> list[Letter]:
        if any(letter.id in self.damaged for letter in found):
            raise StorageFailed("a letter is damaged")
        return found


class FakeGateways(MemoryDeliveryTransport):
    """Gateways that do what the test wants; `scripts` says it delivery by delivery.

    A script is consumed from its front: an error is raised, verdicts are answered; when it is
    used up, everything is accepted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[float, DeliveryBatch]] = []
        self.scripts: dict[str, list[HeadgateError | list[Verdict]]] = {}
        self.hanging: set[str] = set()
        self.delays_s: dict[str, float] = {}
        self.fills: dict[str, float] = {}
        self.poison: set[tuple[str, int]] = set()
        """Gateway and seq of deliveries for which a whole batch is refused."""
        self.rejected: set[tuple[str, int]] = set()
        """Gateway and seq of deliveries that are refused for good, one by one."""
        self.stale: set[PartitionRef] = set()
        """Those of which a gateway has seen a newer owner."""
        self.slow_readers: set[str] = set()
        """Subscriptions that have no room for redeliveries."""
        self.accepted: dict[str, list[Delivery]] = {}
        self.timeouts_s: list[float] = []
        self.on_batch: Callable[[], None] = lambda: None
        self.prepared: list[DeliveryBatch] = []

    def prepare(self, url: str, batch: DeliveryBatch) -> None:
        self.prepared.append(batch)

    async def deliver(
        self,
        url: str,
        batch: DeliveryBatch,
        *,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        self.timeouts_s.append(timeout_s)
        self.batches.append((asyncio.get_running_loop().time(), batch))
        self.on_batch()
        self.gateways.listening[url] = self._answer
        script = self.scripts.get(batch.gateway_id, [])
        for step in script[:1]:
            if isinstance(step, Exception) and not self._is_stuck(batch):
                del script[0]
                raise step
        return await super().deliver(url, batch, timeout_s=timeout_s, meanwhile=meanwhile)

    async def _answer(self, batch: DeliveryBatch) -> DeliveryAnswer:
        if batch.gateway_id in self.hanging:
            await asyncio.Event().wait()
        if self._is_stuck(batch):
            raise InvalidRequest("poison")
        if delay_s := self.delays_s.get(batch.gateway_id):
            await asyncio.sleep(delay_s)
        taken: list[Verdict] = ["accepted"] * len(batch.deliveries)
        script = self.scripts.get(batch.gateway_id)
        step = script.pop(0) if script else taken
        assert not isinstance(step, Exception), "raised before it got here"
        verdicts = list(step)
        for at, one in enumerate(batch.deliveries):
            if ref_of(one) in self.stale:
                verdicts[at] = "stale_fence"
            elif (batch.gateway_id, one.seq) in self.rejected:
                verdicts[at] = "rejected"
            elif one.redelivery and self.slow_readers.intersection(one.subscriptions):
                verdicts[at] = "retry"
        for delivery, verdict in zip(batch.deliveries, verdicts, strict=True):
            if verdict == "accepted":
                self.accepted.setdefault(batch.gateway_id, []).append(delivery)
        return DeliveryAnswer(tuple(verdicts), fill=self.fills.get(batch.gateway_id, 0.0))

    def _is_stuck(self, batch: DeliveryBatch) -> bool:
        return batch.gateway_id in self.hanging or any(
            (batch.gateway_id, one.seq) in self.poison for one in batch.deliveries
        )

    def seqs(self, gateway_id: str, partition: int = 0) -> list[int]:
        return [d.seq for d in self.accepted.get(gateway_id, []) if d.partition == partition]


class LaneWorld:
    """`start` runs the lane; the test then plays coordinator, producer and gateways.

    With a folder for `notes`, what the lane knows outlives it. While the coordinator is `away`,
    nobody answers a lane that starts.
    """

    def __init__(self, *, partitions: int = 1, attempt: int = 0, **settings: float | str) -> None:
        self.log = WrittenLog()
        self.checkpoints = FaultyCheckpoints()
        self.letters = FaultyLetters()
        self.gateways = FakeGateways()
        self.notes: Path | None = None
        self.away = False
        self.hears = True
        """Whether the coordinator answers a lane that is about to claim."""
        self.sent: list[to_coordinator.ToCoordinator] = []
        self.session: MemoryControlSession | None = None
        self.revision = 0
        self.topics: tuple[Topic, ...] = ()
        """What the topology says of how topics are partitioned."""
        self.refs = [PartitionRef(TOPIC, number) for number in range(partitions)]
        self.spec = LaneSpec(
            router_id="router-1",
            incarnation="a",
            lane=0,
            window=3,
            attempt=attempt,
            assignment=1,
            owns=tuple(Owner(ref, "router-1", 5) for ref in self.refs),
            coordinator="nowhere:0",
            data="nowhere",
            settings=LaneSettings(**settings),  # type: ignore[arg-type]
        )
        self.machine = ScriptedMachine(clock=asyncio.get_running_loop().time)
        self.lane: Lane
        self.life: asyncio.Task[None]

    def start(self) -> None:
        ports = LanePorts(
            self.log,
            self.checkpoints,
            self.letters,
            self.gateways,
            self._connect,
            self.machine,
            notes=NoNotes() if self.notes is None else self._lane_notes(self.notes),
        )
        self.lane = Lane(self.spec, ports)
        self.life = asyncio.create_task(self.lane.run())

    def _lane_notes(self, folder: Path) -> LaneNotes:
        spec = self.spec
        return FileLaneNotes(
            folder,
            window=spec.window,
            attempt=spec.attempt,
            lane=spec.lane,
            incarnation=spec.incarnation,
        )

    def noting(self, folder: Path) -> Self:
        self.notes = folder
        return self

    def successor(self, *, window: int = 3, attempt: int = 0, away: bool = False) -> LaneWorld:
        """Another lane for the same partitions, in the same surroundings."""
        world = copy.copy(self)
        world.spec = msgspec.structs.replace(self.spec, window=window, attempt=attempt)
        world.sent, world.session, world.away = [], None, away
        return world

    def _connect(self, hello: HelloSource) -> MemoryControlSession:
        self.session = MemoryControlSession(hello, self._hear)
        if self.away:
            hello()  # and nobody answers
        else:
            self.welcome()
        return self.session

    def _hear(self, message: to_coordinator.ToCoordinator) -> None:
        self.sent.append(message)
        if isinstance(message, to_coordinator.MayClaim) and self.hears:
            self.push(from_coordinator.ClaimNow(message.number))

    def welcome(self) -> to_coordinator.Hello:
        """The coordinator is there, or there again; returns what the lane says of itself."""
        assert self.session is not None
        self.away = False
        hello = self.session.connect()
        self.session.push(from_coordinator.Welcome("coordinator-1", 30_000, 5_000))
        self.session.push(from_coordinator.PushTopology(self.topology("gateway-1", "gateway-2")))
        return hello

    def cut_off(self) -> None:
        assert self.session is not None
        self.away = True
        self.session.cut()

    async def die(self) -> None:
        """As if its process were killed: nobody hears a goodbye."""
        self.cut_off()
        self.life.cancel()
        await asyncio.gather(self.life, return_exceptions=True)

    def topology(self, *gateways: str) -> Topology:
        nodes = tuple(Node(g, "gateway", f"http://{g}") for g in gateways)
        return Topology(1, topics=self.topics, nodes=nodes)

    def push(self, message: from_coordinator.FromCoordinator) -> None:
        assert self.session is not None
        self.session.push(message)

    async def subscribed(self, *subscriptions: Subscription) -> None:
        """Hand the lane its first snapshot and let it start to read."""
        await settle_down()
        self.revision += 1
        self.push(from_coordinator.SubscriptionSnapshot(self.revision, subscriptions))
        await settle_down()

    def append(self, count: int, *, partition: int = 0, **document: object) -> None:
        for number in range(count):
            self.log.append({"number": number, **document}, partition=partition)

    async def ended(self, reason: str = "test") -> LaneTally:
        """End it as a stopping router does, and wait for the end of its life."""
        self.push(from_coordinator.EndWindow(reason, hand_over=False))
        return await self.dead()

    async def dead(self) -> LaneTally:
        await self.life
        return await self.lane.tally()

    def held(self) -> dict[PartitionRef, Fence]:
        """Under which fence the position of each partition is."""
        return {ref: stored.fence for ref, stored in self.checkpoints.stored.items()}

    def tally(self, partition: int = 0) -> Tally:
        return self._stored(partition).tally

    def position(self, partition: int = 0) -> int:
        return self._stored(partition).settled

    def _stored(self, partition: int) -> Position:
        stored = self.checkpoints.stored.get(self.refs[partition])
        return Position() if stored is None else stored.position


async def settle_down(seconds: float = 0.2) -> None:
    """Let virtual time pass, in which everything that can happen happens."""
    await asyncio.sleep(seconds)


def everything(subscription_id: str, gateway_id: str = "gateway-1") -> Subscription:
    return Subscription(subscription_id, gateway_id, TOPIC)
