"""Gateways, a router and a coordinator in one process, on virtual time, for consumers of a group.

Real: the client, the gateways but for their sockets, the lanes and the coordinator's decisions. The
log, positions and letters are in memory. What stands between them is in the test's hands: a gateway
can be cut off from the coordinator, stand still and not know it, be killed and started again
without memory, stopped in good manners; a coordinator's term can end, with what it stored or
without; letters can be away for gateways.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol, cast

from headgate import errors
from headgate.adapters.delivery_outcome import taken
from headgate.adapters.delivery_wire import encode_lines, read_batch
from headgate.adapters.memory.control import MemoryControlSession
from headgate.adapters.memory.delivery import MemoryDeliveryTransport, MemoryGateways
from headgate.adapters.memory.http import MemoryHttpCalls, MemoryHttpListener, MemoryWeb
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.coordination.effects import Effect, FenceCheckpoints, Persist, Refuse
from headgate.decide.coordination.members.members import Balance, Timing
from headgate.lane.run import Lane, LanePorts
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import RouterReport
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import group_of
from headgate.model.lanes import LaneSettings, LaneSpec
from headgate.model.letters import Letter, LetterQuery, NewLetter
from headgate.model.position import Tries
from headgate.model.stored import StoredState
from headgate.model.topology import Owner, Topology
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.connection import Reception
from headgate.ports.control import HelloSource
from headgate.ports.letters import Fences, LetterStore
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.service import Gateway, GatewayOptions
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from headgate.tasks import Crew
from tests.client.group_system import DecidingCoordinator
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.groups.network import Network, Tap
from tests.lane.faulty_stores import Link, LinkedCheckpoints, LinkedLetters, Moody
from tests.written_log import WrittenLog

PARTITIONS = 4
KEYS_PER_TARGET = 12
"""Of 96 keys that are expected: eight targets."""
PREFETCH = 8
IN_HAND = 24
CONSUMERS = ConsumerBounds(prefetch=PREFETCH, in_hand=IN_HAND)
QUEUE = 20
"""Events that may wait at a gateway for a target; the rest is read from the log."""
TICK_S = 1.0
TIMING = Timing(lane_report_timeout_ms=30_000, learn_for_ms=20_000)
LANE = LaneSettings(window_s=1e6, report_interval_s=5.0)
NOTICED_S = 0.1
LOOK_EVERY_S = 5.0
"""At the log, by lanes that hear nothing of it."""


def now_ms() -> int:
    return 1_000 + round(asyncio.get_running_loop().time() * 1_000)


class VirtualCoordinator(DecidingCoordinator):
    """Positions are claimed and reset in the store before anybody hears of an epoch, and whoever
    lost its stream comes back, unless it is cut off."""

    def __init__(self, checkpoints: FaultyCheckpoints, letters: MemoryLetterStore) -> None:
        self._checkpoints, self._letters = checkpoints, letters
        self.crew = Crew("test")
        self.opened: list[MemoryControlSession] = []
        self.cut_off: set[MemoryControlSession] = set()
        super().__init__(
            partitions=PARTITIONS,
            timing=TIMING,
            balance=Balance(keys_per_target=KEYS_PER_TARGET),
            now_ms=now_ms,
        )

    def open_session(self, hello: HelloSource) -> MemoryControlSession:
        session = super().open_session(hello)
        self.opened.append(session)
        return session

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, FenceCheckpoints):
                self.crew.start("fencing", self._fence(effect))
            elif isinstance(effect, Refuse):
                raise effect.error
            elif isinstance(effect, Persist):
                self.stored = effect.state
            else:
                super().apply([effect])

    async def _fence(self, wanted: FenceCheckpoints) -> None:
        cluster = self.cluster
        done: list[Owner] = []
        overtaken: list[tuple[PartitionRef, int]] = []
        put_back: set[PartitionRef] = set()
        for owner in wanted.owners:
            fence, reset = Fence(owner.epoch), wanted.resets.get(owner.ref)
            try:
                position = await self._checkpoints.claim(owner.ref, fence)
                await self._letters.claim({owner.ref: fence})
                if reset is not None:
                    if reset.goes_back_from(position):
                        put_back.add(owner.ref)
                        for group in wanted.groups:
                            for ref in group.position_refs(owner.ref.partition):
                                until = max(position.settled, position.redeliver_to)
                                await self._checkpoints.put_back(ref, reset.settled, until)
                    await self._checkpoints.reset(owner.ref, fence, reset.settled)
                done.append(owner)
            except errors.Fenced as error:
                overtaken.append((owner.ref, max(error.epoch, owner.epoch)))
        if self.cluster is cluster:
            self.apply(cluster.fenced(done, overtaken=overtaken, put_back=put_back))

    def restart(self, *, with_nothing: bool = False) -> None:
        """The next term; with nothing it has to learn from those who come back."""
        if with_nothing:
            self.stored = StoredState(boot=self.stored.boot)
        everybody, self.sessions = self.sessions, {}
        super().restart()
        for session in everybody.values():
            session.cut()

    def cut(self, session: MemoryControlSession, *, is_noticed: bool = True) -> None:
        """There is no stream until `let_back`."""
        self.cut_off.add(session)
        if is_noticed:
            session.cut()
        session.silent = not is_noticed
        for number in [n for n, one in self.sessions.items() if one is session]:
            del self.sessions[number]
            self.apply(self.cluster.closed(number, now_ms()))

    def lose(self, session: MemoryControlSession) -> None:
        """As `cut`, but whoever has the session doesn't find out: it stands still."""
        self.cut(session, is_noticed=False)

    def let_back(self, session: MemoryControlSession) -> None:
        self.cut_off.discard(session)

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._look_at_sessions()
            self.apply(self.cluster.tick(now_ms()))

    def _look_at_sessions(self) -> None:
        for number, session in list(self.sessions.items()):
            if session.closed:
                del self.sessions[number]
                self.apply(self.cluster.closed(number, now_ms()))
            elif session.connected and (member := self.cluster.member_of(number)) is not None:
                member.seen_ms = now_ms()
        self.opened = [session for session in self.opened if not session.closed]
        connected = set(self.sessions.values())
        for session in self.opened:
            if session not in connected and session not in self.cut_off:
                self.connect(session)


class GatewayCheckpoints(LinkedCheckpoints):
    """What one gateway sees of the positions, for as long as it lives."""

    async def reset(
        self, ref: PartitionRef, fence: Fence, settled: int, *, resync: bool = False
    ) -> None:
        await self._call(lambda: self._inner.reset(ref, fence, settled, resync=resync))

    async def note_tries(self, ref: PartitionRef, fence: Fence, tried: Tries) -> None:
        await self._call(lambda: self._inner.note_tries(ref, fence, tried))

    async def stop(self, ref: PartitionRef, fence: Fence, why: str) -> None:
        await self._call(lambda: self._inner.stop(ref, fence, why))

    async def close(self) -> None:
        return


class GatewayLetters(LinkedLetters):
    """What one gateway sees of the letters, for as long as it lives."""

    async def find(
        self, query: LetterQuery, *, after_id: int = 0, limit: int = 100
    ) -> list[Letter]:
        return await self._call(lambda: self._inner.find(query, after_id=after_id, limit=limit))

    async def close(self) -> None:
        return


class LetterTap(Protocol):
    """Whoever listens to what becomes of the letters of groups."""

    def revived(self, letter: Letter) -> None: ...
    def written(self, letter: NewLetter, fence: Fence) -> None: ...
    def buried(self, letter: Letter, fence: Fence) -> None: ...
    def removed_letter(self, letter: Letter) -> None: ...


class TappedLetters(MemoryLetterStore):
    """Everybody's letters."""

    def __init__(self, tap: LetterTap) -> None:
        super().__init__()
        self._tap = tap

    def of_group(self, state: str) -> list[Letter]:
        return [
            one
            for one in self.stored.letters.values()
            if one.state == state and group_of(one.gateway_id)
        ]

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        self.stored.admit({one.fenced_by: fences[one.fenced_by] for one in letters})
        for one in letters:
            if group_of(one.gateway_id):
                self._tap.written(one, fences[one.fenced_by])
        await super().put(letters, fences, now_ms=now_ms)

    async def bury(self, letters: Sequence[Letter], fences: Fences, *, now_ms: int) -> None:
        self.stored.admit({one.fenced_by: fences[one.fenced_by] for one in letters})
        for one in self._of_group_among(letters):
            self._tap.buried(one, fences[one.fenced_by])
        await super().bury(letters, fences, now_ms=now_ms)

    async def remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        self.stored.admit({one.fenced_by: fences[one.fenced_by] for one in letters})
        for one in self._of_group_among(letters):
            self._tap.removed_letter(one)
        await super().remove(letters, fences)

    async def revive(self, ids: Sequence[int], *, now_ms: int) -> list[int]:
        for one in self.of_group("dead"):
            if one.id in ids:
                self._tap.revived(one)
        return await super().revive(ids, now_ms=now_ms)

    def _of_group_among(self, letters: Sequence[Letter]) -> list[Letter]:
        """Those that are there to be changed."""
        ids = {one.id for one in letters}
        return [one for one in self.of_group("parked") if one.id in ids]


class _Nowhere:
    """Where no lane delivers to; implements ports.transport.DeliveryListener."""

    async def start(self) -> str:
        return ""

    async def failed(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, timeout_s: float) -> None: ...


class _Nobody:
    """In place of what listens for connections: those of `network` come in by themselves."""

    async def start(self, reception: Reception, host: str, port: int, *, setting: str = "") -> int:
        return port

    def stop(self) -> None: ...


class InProcessGateway(Gateway):
    """A gateway that is reached over `network` and `deliveries` alone."""

    def __init__(self, system: System, node_id: str, incarnation: int) -> None:
        self._system = system
        self._address = f"{node_id}.{incarnation}"
        self.node_id = node_id
        self.link = Link(system.chance)
        store = GatewayCheckpoints(self.link, system.checkpoints, Moody())
        letters = GatewayLetters(self.link, system.letters, system.moody_letters)
        super().__init__(
            GatewayOptions(
                node_id,
                str(incarnation),
                "http://coordinator",
                bounds=Bounds(queue=QUEUE, topic_grace_s=5.0),
                consumers=CONSUMERS,
                report_every_s=5.0,
            ),
            reader=system.log,
            checkpoints=cast("CheckpointStore", store),
            open_session=self._opened,
            letters=cast("LetterStore", letters),
            http=MemoryHttpListener(MemoryWeb()),
            calls=MemoryHttpCalls(MemoryWeb()),
            open_listener=lambda _: _Nowhere(),
            connections=_Nobody(),
            machine=system.machine,
        )

    def _opened(self, hello: HelloSource) -> MemoryControlSession:
        self.session = self._system.coordinator.open_session(hello)
        return self.session

    async def _listen(self) -> None:
        self.url = f"http://{self._address}"
        self.ws_url = f"ws://{self._address}"
        self.delivery_url = f"mem://{self._address}"
        self._begin_to_listen()

    def _begin_to_listen(self) -> None:
        self._system.network.listen(self.ws_url, self.node_id, self._websocket)
        self._system.deliveries.listening[self.delivery_url] = self._take

    async def _take(self, batch: DeliveryBatch) -> DeliveryAnswer:
        """As it would come over a wire."""
        await self.link.pass_through()
        return await taken(self._deliveries.take, read_batch(encode_lines(batch)))

    async def _stop_listening(self, timeout_s: float) -> None:
        self._unlisten()
        await super()._stop_listening(timeout_s)

    def _unlisten(self) -> None:
        self._system.network.servers.pop(self.ws_url, None)
        self._system.deliveries.listening.pop(self.delivery_url, None)

    @property
    def is_still(self) -> bool:
        return not self.link.thawed.is_set()

    def stand_still(self) -> None:
        """Nothing comes in or goes out, though to itself it is connected to everybody."""
        self._unlisten()
        self.link.thawed.clear()
        self._system.coordinator.lose(self.session)
        self._hold(is_held=True)

    def go_on(self) -> None:
        """That it has lost the coordinator it finds a little later."""
        self._begin_to_listen()
        self.link.thawed.set()
        self._hold(is_held=False)
        asyncio.get_running_loop().call_later(NOTICED_S, self._find_out)

    def _find_out(self) -> None:
        self.session.cut()
        self.session.silent = False
        if not self.link.dead:
            self._system.coordinator.let_back(self.session)

    def _hold(self, *, is_held: bool) -> None:
        for link in [one for one in self._system.network.links if one.node_id == self.node_id]:
            link.hold(is_held=is_held)

    async def kill(self) -> None:
        """Nothing of it is ever seen again."""
        self._hold(is_held=False)
        self.link.dead = True
        self._unlisten()
        self._system.coordinator.cut(self.session)
        self._system.coordinator.opened.remove(self.session)
        for link in [one for one in self._system.network.links if one.node_id == self.node_id]:
            link.cut()
        for crew in (self._crew, self._subscriptions.crew):
            crew.dismiss()
            await crew.close()


class Router:
    """Runs one lane after the other, for all it is assigned; Spark isn't needed for that."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._assignment: from_coordinator.Assign | None = None
        self._topology = Topology(0)
        self._window = 0
        self._news = asyncio.Event()
        self.crew = Crew("test")

    def start(self) -> None:
        self.session = self._system.coordinator.open_session(self._hello)
        self.crew.start("router", self._listen(self.session))
        self.crew.start("windows", self._run_windows())

    def _hello(self) -> to_coordinator.Hello:
        assignment = self._assignment
        return to_coordinator.Hello(
            role="router",
            node_id="router-1",
            incarnation="1",
            assignment=assignment.number if assignment else 0,
            owns=assignment.sources if assignment else (),
            generation=self._topology.generation,
        )

    async def _listen(self, session: MemoryControlSession) -> None:
        async for message in session.messages():
            match message:
                case from_coordinator.Welcome(learning=learning):
                    if learning:
                        await session.send(to_coordinator.Recall(self._topology))
                    await session.send(RouterReport("ready", self._window, 0.0))
                case from_coordinator.Assign():
                    self._assignment = message
                    self._news.set()
                case from_coordinator.PushTopology(topology):
                    if topology.generation > self._topology.generation:
                        self._topology = topology
                    await session.send(to_coordinator.AckTopology(topology.generation))
                case _:
                    pass

    async def _run_windows(self) -> None:
        while True:
            await self._news.wait()
            assert self._assignment is not None
            if not self._assignment.sources:
                self._news.clear()
                continue
            self._window += 1
            lane = Lane(self._spec(self._assignment), self._ports())
            self.crew.start("lane", lane.run())
            await lane.tally()
            await asyncio.sleep(0.1)

    def _spec(self, assignment: from_coordinator.Assign) -> LaneSpec:
        return LaneSpec(
            router_id="router-1",
            incarnation="1",
            lane=0,
            window=self._window,
            attempt=0,
            assignment=assignment.number,
            owns=assignment.sources,
            coordinator="nowhere:0",
            data="nowhere",
            settings=LANE,
        )

    def _ports(self) -> LanePorts:
        system = self._system
        return LanePorts(
            system.log,
            system.checkpoints,
            system.letters,
            MemoryDeliveryTransport(system.deliveries),
            system.coordinator.open_session,
            system.machine,
        )


class System:
    """Everything but the consumers; all chance comes from `chance`."""

    def __init__(self, chance: random.Random, tap: Tap, letter_tap: LetterTap) -> None:
        self.chance = chance
        clock = asyncio.get_running_loop().time
        self.machine = ScriptedMachine(chance.getrandbits(32), begins_ms=1_000, clock=clock)
        self.log = WrittenLog()
        self.log._safety_s = LOOK_EVERY_S
        self.checkpoints = FaultyCheckpoints()
        self.letters = TappedLetters(letter_tap)
        self.moody_letters = Moody()
        """How gateways find them."""
        self.deliveries = MemoryGateways()
        self.network = Network(chance, tap)
        self.coordinator = VirtualCoordinator(self.checkpoints, self.letters)
        self.router = Router(self)
        self.gateways: dict[str, InProcessGateway] = {}
        self._incarnations = 0

    async def start(self, *names: str) -> None:
        self.coordinator.crew.start("ticks", self.coordinator.tick())
        self.router.start()
        for name in names:
            await self.start_gateway(name)

    async def start_gateway(self, name: str) -> None:
        self._incarnations += 1
        self.gateways[name] = gateway = InProcessGateway(self, name, self._incarnations)
        await gateway.start()

    async def stop(self) -> None:
        for gateway in self.gateways.values():
            await gateway.stop()
        await self.router.crew.close()
        await self.coordinator.crew.close()

    # --- what operators and time do --------------------------------------------------------------

    def ref(self, partition: int) -> PartitionRef:
        return PartitionRef("flights", partition)

    def head(self, partition: int) -> int:
        return self.log.stored.partition(self.ref(partition)).state.head

    def earliest(self, partition: int) -> int:
        return self.log.stored.partition(self.ref(partition)).extent.earliest

    def settled(self, partition: int) -> int:
        stored = self.checkpoints.stored.get(self.ref(partition))
        return 0 if stored is None else stored.settled

    def committed(self, target: str, partition: int) -> int:
        """How far the target of that name is."""
        stored = self.checkpoints.stored.get(PartitionRef(target, partition))
        return 0 if stored is None else stored.settled

    async def retry_letters(self, ids: list[int]) -> None:
        refs = {self.letters.stored.letters[id_].ref for id_ in ids}
        await self.letters.revive(ids, now_ms=now_ms())
        self.coordinator.apply(self.coordinator.cluster.letters_revived(refs))
