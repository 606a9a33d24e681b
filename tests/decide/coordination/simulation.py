"""A whole cluster without processes: the coordinator's decisions, its stores, and its peers.

Everything happens in one order and at once; only time, faults and what peers put off are up to the
test. What must hold at every single effect is checked here: nothing is told before it is durable,
and no router is assigned an epoch before the checkpoint is fenced and the live gateways adopted it.
So are the invariants of the state, after every decision, and that whoever is refused has changed
nothing. A decision that fails half-way ends the coordinator's term, as it does in its shell.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial

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
from headgate.decide.coordination.members.members import Timing
from headgate.decide.coordination.remembered import fitting
from headgate.decide.lane.checkpoints import Reset
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.from_coordinator import FromCoordinator
from headgate.model.control.to_coordinator import ToCoordinator
from headgate.model.event import Fence, PartitionRef
from headgate.model.stored import StoredState
from headgate.model.topology import Owner
from tests.decide.coordination.faults import Fault, Faults
from tests.decide.coordination.peers import Gateway, Ingest, Lane, Peer, Router, Taken

TIMING = Timing()
PART_SIZE = 2
"""A snapshot of a few subscriptions comes in several parts already."""
STEPS_MAX = 100_000
"""More messages than any one event can cause, unless two peers never stop answering each other."""

Decision = Callable[[], list[Effect]]


class CoordinatorDied(Exception):
    """The coordinator was to die right after it made something durable, or within a decision."""


class Simulation:
    def __init__(self) -> None:
        self.now_ms = 1_000
        self.durable = StoredState(boot=1)
        self.cluster = self._new_cluster()
        self.nodes: dict[str, Peer] = {}
        """The newest process of every id."""
        self.lanes: list[Lane] = []
        """Every lane that lives, heard of or not."""
        self.ever: list[Lane] = []
        self.checkpoints: dict[PartitionRef, Fence] = {}
        self.store_is_away = False
        """Nobody claims or saves a position, nor learns who holds it."""
        self.log_epochs: dict[PartitionRef, int] = {}
        self.log_records: Counter[PartitionRef] = Counter()
        self.taken: dict[str, Taken] = {}
        """What the logs know of connectors."""
        self.has_forgotten = False
        """A coordinator has ever begun with nothing."""
        self.put: dict[PartitionRef, list[Reset]] = {}
        """The resets that were carried out, each once; a test must not want two that are alike."""
        self.read_on: set[PartitionRef] = set()
        """Whose position a lane has moved since it was put."""
        self.dies_after_persist = False
        self.faults = Faults()
        self.assigned: dict[tuple[PartitionRef, int], str] = {}
        """Which router was ever assigned a partition under an epoch."""
        self._peers: dict[int, Peer] = {}
        self._steps: deque[Callable[[], None]] = deque()
        self._stepping = False
        self._sessions = 0

    # --- the coordinator -------------------------------------------------------------------------

    def _new_cluster(self) -> Cluster:
        cluster = Cluster(self.durable, TIMING, "coordinator-1", self.now_ms)
        cluster.registry.part_size = PART_SIZE
        invariants.check(cluster)
        return cluster

    def restart(self, *, with_nothing: bool = False) -> None:
        """Another coordinator takes over from what is durable; nobody is connected to it yet."""
        for peer in self._peers.values():
            peer.session = None
        self._peers.clear()
        self._steps.clear()
        self.dies_after_persist = False
        self.faults.left = None
        if with_nothing:
            self.durable, self.has_forgotten = StoredState(), True
            # No store remembers an epoch under which nobody ever read: that one may come again.
            claimed = {(o.ref, o.epoch) for lane in self.ever for o in lane.planned}
            self.assigned = {k: node for k, node in self.assigned.items() if k in claimed}
        self.durable = msgspec.structs.replace(self.durable, boot=self.durable.boot + 1)
        self.cluster = self._new_cluster()

    def ask(self, decision: Decision) -> None:
        """Carry out what the coordinator decides, and everything that follows from it; raises why
        it is refused."""

        def asked() -> list[Effect]:
            before = repr(self.cluster)
            effects = decision()
            if any(_is_refusal(effect) for effect in effects):
                assert repr(self.cluster) == before, "refused, and changed all the same"
            return effects

        self._steps.append(partial(self._apply, asked))
        self._run()

    def _run(self) -> None:
        if self._stepping:
            return
        self._stepping = True
        try:
            for _ in range(STEPS_MAX):
                if not self._steps:
                    return
                self._steps.popleft()()
            raise AssertionError("messages beget messages for ever")
        except CoordinatorDied:
            self.restart()
        finally:
            self._stepping = False

    def _apply(self, decision: Decision) -> None:
        effects = self._decided(decision)
        while effects:
            follow_up: list[Effect] = []
            for effect in effects:
                follow_up += self._carry_out(effect)
            effects = follow_up
        if not self.cluster.learning.is_on:
            assert self.durable == self.cluster.to_store(), "decided, and not kept"

    def _decided(self, decision: Decision) -> list[Effect]:
        try:
            with self.faults.deciding():
                effects = decision()
        except Fault as fault:
            raise CoordinatorDied from fault
        invariants.check(self.cluster)
        return effects

    def _carry_out(self, effect: Effect) -> list[Effect]:
        match effect:
            case Persist(state):
                assert fitting(state) == state, "kept, and partly forgotten"
                self.durable = state
                if self.dies_after_persist:
                    raise CoordinatorDied
            case FenceCheckpoints(owners, resets) if not self.store_is_away:
                return [e for owner in owners for e in self._fence(owner, resets.get(owner.ref))]
            case Send(session, message):
                self._check_told(message)
                self._steps.append(partial(self._hear, session, message))
            case EndSession(session):
                self._steps.append(partial(self._closed, session))
            case Refuse(error):
                raise error
        return []

    def _fence(self, owner: Owner, reset: Reset | None) -> list[Effect]:
        held = self.checkpoints.get(owner.ref, Fence(0))
        if held > Fence(owner.epoch):
            above = (owner.ref, max(held.epoch, owner.epoch))
            return self._decided(lambda: self.cluster.fenced((), overtaken=(above,)))
        self.checkpoints[owner.ref] = Fence(owner.epoch)
        if reset is not None:
            self._put(owner.ref, reset)
        return self._decided(lambda: self.cluster.fenced((owner,)))

    def _put(self, ref: PartitionRef, reset: Reset) -> None:
        put = self.put.setdefault(ref, [])
        if reset in put:
            assert ref not in self.read_on, f"{ref} is put back from where it has come since"
        else:
            put.append(reset)
        self.read_on.discard(ref)

    def _check_told(self, message: FromCoordinator) -> None:
        """What is told is durable, fenced and adopted."""
        match message:
            case from_coordinator.PushTopology(topology) if not self.cluster.learning.is_on:
                told = {*topology.logs, *topology.sources}
                assert told <= {*self.durable.logs, *self.durable.sources}, "told, but not durable"
                assert set(topology.topics) <= set(self.durable.topics), "told, but not durable"
                assert topology.intakes == self.durable.intakes, "told, but not durable"
                assert topology.connectors == self.durable.connectors, "told, but not durable"
            case from_coordinator.LetGo(owners, settle=True):
                moving = {move.ref for move in self.durable.moves}
                moving |= {reset.ref for reset in self.durable.resets}
                assert {owner.ref for owner in owners} <= moving, "moved, but not durable"
            case from_coordinator.Assign(_, owners):
                assert set(owners) <= set(self.durable.sources), "assigned, but not durable"
                unput = {reset.ref for reset in self.durable.resets if reset.is_released}
                assert not unput & {o.ref for o in owners}, "assigned, and may be put once more"
                for owner in owners:
                    self._check_assigned(owner)
            case _:
                pass

    def _check_assigned(self, owner: Owner) -> None:
        """Checked when it is news: later the gateways may be others."""
        if (owner.ref, owner.epoch) in self.assigned:
            former = self.assigned[owner.ref, owner.epoch]
            assert former == owner.node_id, f"{owner} was assigned to {former} before"
            return
        given = [epoch for ref, epoch in self.assigned if ref == owner.ref]
        assert owner.epoch > max(given, default=0), f"{owner} isn't above {given}"
        self.assigned[owner.ref, owner.epoch] = owner.node_id
        assert self.checkpoints[owner.ref].epoch >= owner.epoch, f"{owner} isn't fenced"
        for gateway in self.live_gateways():
            assert gateway.fences.get(owner.ref, 0) >= owner.epoch, (
                f"{gateway.node_id} hasn't adopted {owner}"
            )

    def live_gateways(self) -> Iterator[Gateway]:
        """Those that live, and that the coordinator doesn't miss."""
        for node in self.cluster.topology().of_role("gateway"):
            peer, member = self.nodes.get(node.id), self.cluster.members.get(node.id)
            is_missed = member is not None and member.is_missed
            if isinstance(peer, Gateway) and peer.alive and not is_missed:
                yield peer

    # --- streams ---------------------------------------------------------------------------------

    def start(self, peer: Peer) -> Peer:
        """A new process of its id connects; whoever had the id before isn't looked after any more,
        unless the new one is refused."""
        former = self.nodes.get(peer.node_id)
        self.nodes[peer.node_id] = peer
        self.connect(peer)
        if peer.refused and former is not None:
            self.nodes[peer.node_id] = former
        return peer

    def connect(self, peer: Peer) -> None:
        self.disconnect(peer)
        peer.refused = ""
        peer.waiting.clear()
        self._sessions += 1
        session = self._sessions
        peer.session, peer.say = session, partial(self._say, session)
        self._peers[session] = peer
        hello = peer.hello()
        self.ask(lambda: self.cluster.opened(session, hello, self.now_ms))

    def disconnect(self, peer: Peer) -> None:
        """The stream breaks, and nobody said goodbye."""
        if peer.session is not None:
            session, peer.session = peer.session, None
            self._steps.append(partial(self._closed, session))
            self._run()

    def _closed(self, session: int) -> None:
        peer = self._peers.pop(session, None)
        if peer is not None:
            if peer.session == session:
                peer.session = None
            self._apply(lambda: self.cluster.closed(session, self.now_ms))

    def _hear(self, session: int, message: FromCoordinator) -> None:
        if (peer := self._peers.get(session)) is not None:
            peer.hear(message)

    def _say(self, session: int, message: ToCoordinator) -> None:
        self._steps.append(partial(self._received, session, message))
        self._run()

    def _received(self, session: int, message: ToCoordinator) -> None:
        if session in self._peers:
            self._apply(lambda: self.cluster.received(session, message, self.now_ms))
            if isinstance(message, to_coordinator.Goodbye):
                self._closed(session)

    # --- processes -------------------------------------------------------------------------------

    def kill(self, peer: Peer) -> None:
        """The process is gone; a router takes its lanes along."""
        peer.alive = False
        self.disconnect(peer)
        if isinstance(peer, Router):
            for lane in self.lanes_of(peer):
                self.kill(lane)
        self.bury()

    def leave(self, peer: Peer, *, returns: bool = False) -> None:
        """The process ends on purpose, its lanes first."""
        if isinstance(peer, Router):
            for lane in self.lanes_of(peer):
                lane.end()
        peer.alive = False
        peer.say(to_coordinator.Goodbye(returns))
        self.bury()

    def bury(self) -> None:
        self.lanes = [lane for lane in self.lanes if lane.alive]
        self.nodes = {i: node for i, node in self.nodes.items() if node.alive}

    def lanes_of(self, router: Router) -> list[Lane]:
        return [
            lane
            for lane in self.lanes
            if (lane.node_id, lane.incarnation) == (router.node_id, router.incarnation)
            and lane.alive
        ]

    def open_window(self, router: Router, *, lanes: int = 1, hesitates: bool = False) -> None:
        """What Spark does with the newest assignment."""
        router.window += 1
        sources = router.assignment.sources
        for number in range(min(lanes, len(sources))):
            lane = Lane(
                node_id=router.node_id,
                incarnation=router.incarnation,
                window=router.window,
                attempt=0,
                assignment=router.assignment.number,
                planned=sources[number::lanes],
                claims=self._claim,
                hesitates=hesitates or self.store_is_away,
            )
            self.lanes.append(lane)
            self.ever.append(lane)
            self.connect(lane)
        self.bury()

    def _claim(self, fence: Fence, owner: Owner) -> bool | None:
        if self.store_is_away:
            return None
        if self.checkpoints.get(owner.ref, Fence(0)) > fence:
            return False
        self.checkpoints[owner.ref] = fence
        return True

    def go_on_from_notes(self, dead: Lane, router: Router) -> None:
        """A lane that has not heard of the coordinator takes up what a dead one noted, where that
        one still holds the positions. What said goodbye has torn up its notes."""
        if dead.alive or dead.said_goodbye or not dead.claimed or self.store_is_away:
            return
        is_rerun = dead.incarnation == router.incarnation
        lane = Lane(
            node_id=router.node_id,
            incarnation=router.incarnation,
            window=dead.window if is_rerun else router.window,
            attempt=dead.attempt + 1 if is_rerun else 0,
            assignment=dead.assignment,
            planned=dead.owned(),
            claims=self._claim,
            claimed=True,
            revision=dead.revision,
            subscriptions=set(dead.subscriptions),
            topology=dead.topology,
        )
        left = [o for o in dead.owned() if self.checkpoints[o.ref] == dead.fence(o)]
        lane.holds = {o.ref: o for o in left if self._claim(lane.fence(o), o)}
        if lane.holds:
            self.lanes.append(lane)
            self.ever.append(lane)

    def save(self, lane: Lane) -> None:
        """The lane has settled records of all it holds, and learns where that doesn't count."""
        if self.store_is_away:
            return
        for ref, owner in list(lane.holds.items()):
            if self.checkpoints[ref] > lane.fence(owner):
                lane.drop(ref)
            else:
                self.read_on.add(ref)

    def readers(self, ref: PartitionRef) -> list[Lane]:
        """The lanes whose settling of `ref` would count."""
        return [
            lane
            for lane in self.lanes
            if lane.reads
            and ref in lane.holds
            and lane.fence(lane.holds[ref]) == self.checkpoints[ref]
        ]

    # --- time ------------------------------------------------------------------------------------

    def wait(self, seconds: int) -> None:
        """Everybody who is connected and not frozen checks in every second."""
        for _ in range(seconds):
            self.now_ms += 1_000
            for peer in list(self._peers.values()):
                peer.check_in()
            self._steps.append(partial(self._apply, lambda: self.cluster.tick(self.now_ms)))
            self._run()
            self.bury()

    def calm(self, seconds: int) -> None:
        """Nothing fails any more, everybody does what it is asked to, and Spark opens windows."""
        self.store_is_away = False
        for _ in range(seconds):
            for peer in [*self.nodes.values(), *self.lanes]:
                peer.frozen = peer.late = False
                if isinstance(peer, Gateway):
                    peer.renews = True
                peer.catch_up()
                if peer.session is None and peer.alive:
                    self.connect(peer)
            for lane in list(self.lanes):
                lane.hesitates = False
                lane.claim()
                if lane.unproved:
                    lane.prove()
                self.save(lane)
                lane.let_go()
            self.bury()
            for router in [n for n in self.nodes.values() if isinstance(n, Router)]:
                newest = [x for x in self.lanes_of(router) if x.window == router.window]
                if router.session is not None and all(lane.told_to_end for lane in newest):
                    self.open_window(router)
            self.wait(1)

    def unrest(self) -> Iterator[str]:
        """What a calm cluster must not show, one sentence each."""
        cluster = self.cluster
        if cluster.learning.is_on:
            yield "the coordinator learns"
        if gone := {*cluster.members, *cluster.expected} ^ set(self.nodes):
            yield f"{sorted(gone)} are not there, or not known to be"
        for move in cluster.handoffs.moves():
            yield f"{move.ref} is on its way from {move.from_id} to {move.to_id}"
        for reset in cluster.resets.all():
            yield f"{reset.ref} is to be put to {reset.settled}"
        routers = {i for i, n in self.nodes.items() if isinstance(n, Router)}
        ingest = {i: n for i, n in self.nodes.items() if isinstance(n, Ingest)}
        for ref in cluster.refs():
            owner, log = cluster.sources.owners.get(ref), cluster.logs.owners.get(ref)
            if routers and (owner is None or owner.node_id not in routers):
                yield f"{ref} has no router, but {owner}"
            elif routers and [lane.node_id for lane in self.readers(ref)] != [owner.node_id]:  # type: ignore[union-attr]
                yield f"{ref} of {owner} is read by {self.readers(ref)}"
            if ingest and (log is None or log.node_id not in ingest):
                yield f"the log of {ref} has no node, but {log}"
            elif log is not None and ingest and ingest[log.node_id].opened.get(ref) != log:
                yield f"{log} isn't open"
        for name in cluster.connectors:
            read = cluster.intakes.owners[PartitionRef(name, 0)]
            readers = {i: n.reads[name] for i, n in ingest.items() if name in n.reads}
            if ingest and readers != {read.node_id: read}:
                yield f"{name} of {read} is read by {readers}"
        tables = (
            (cluster.sources, routers),
            (cluster.logs, set(ingest)),
            (cluster.intakes, set(ingest)),
        )
        for table, role in tables:
            staying = (role - cluster.draining) or role
            counts = [len(table.of_node(node_id)) for node_id in staying]
            if counts and max(counts) - min(counts) > 1:
                yield f"{sorted(staying)} have {counts}"
            for node_id in role - staying:
                if table.of_node(node_id):
                    yield f"{node_id} is to give away {table.of_node(node_id)}"
        for node in self.nodes.values():
            if isinstance(node, Gateway):
                for name in node.subscriptions:
                    if not node.has_subscribed(name):
                        yield f"{name} waits for its adoption"


def _is_refusal(effect: Effect) -> bool:
    return isinstance(effect, Refuse) or (
        isinstance(effect, Send) and isinstance(effect.message, from_coordinator.Refused)
    )
