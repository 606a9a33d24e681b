"""Lanes follow each other while the coordinator comes and goes: who holds the position counts, not
who is heard first, and whoever is healthy reads on."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.decide.coordination.lanes.lanes import CLAIM_MS
from headgate.model.control import from_coordinator
from headgate.model.control.from_coordinator import FromCoordinator
from headgate.model.control.reports import RouterReport
from headgate.model.event import Fence, PartitionRef
from headgate.model.topology import Owner
from tests.decide.coordination.peers import Gateway, Ingest, Lane, Router
from tests.decide.coordination.simulation import Simulation

CLAIM_S = CLAIM_MS // 1_000
LEASES_S = 60
"""By then every lease of a dead one has ended."""


@dataclass
class Begun:
    """One router reads one partition, and `s0` has subscribed."""

    sim: Simulation
    gateway: Gateway
    router: Router

    @property
    def ref(self) -> PartitionRef:
        [ref] = self.sim.cluster.refs()
        return ref

    @property
    def lane(self) -> Lane:
        return self.sim.lanes[-1]

    def everybody_is_back(self) -> None:
        for node in list(self.sim.nodes.values()):
            self.sim.connect(node)

    def successor_claims_unheard(self) -> Lane:
        """The next window's lane gets the registry and claims, and in that moment the coordinator
        dies, with its state on disk."""
        self.sim.open_window(self.router, hesitates=True)
        lane = self.lane
        claims = lane.claims

        def as_the_coordinator_dies(fence: Fence, owner: Owner) -> bool | None:
            answer = claims(fence, owner)
            self.sim.restart()
            return answer

        lane.claims, lane.hesitates = as_the_coordinator_dies, False
        lane.claim()
        lane.claims = claims
        assert lane.claimed
        assert self.sim.readers(self.ref) == [lane]
        return lane

    def goes_on_from_the_notes_of(self, dead: Lane) -> None:
        self.sim.restart()
        self.sim.go_on_from_notes(dead, self.router)

    def nobody_was_told_too_early(self) -> None:
        told = {name for name in self.gateway.subscriptions if self.gateway.has_subscribed(name)}
        for lane in self.sim.readers(self.ref):
            assert told <= lane.subscriptions


def begun(partitions: int = 1) -> Begun:
    sim = Simulation()
    gateway = Gateway(node_id="gateway-1")
    router = Router(node_id="router-1", incarnation="0")
    sim.start(Ingest(node_id="ingest-1", store=sim.log_epochs))
    sim.start(gateway)
    sim.start(router)
    sim.ask(lambda: sim.cluster.create_topic("flights", partitions, "keyed"))
    sim.calm(3)
    gateway.subscribe("s0")
    sim.wait(1)
    assert gateway.has_subscribed("s0")
    return Begun(sim, gateway, router)


# --- a router that starts hears when everything of its own is read ------------------------------


class Beginner(Router):
    """Says that it starts; `told` counts what it heard in return."""

    told = 0

    def act(self, message: FromCoordinator) -> None:
        super().act(message)
        if isinstance(message, from_coordinator.Welcome):
            self.say(RouterReport("starting", self.window, 0.0))
        self.told += isinstance(message, from_coordinator.AllRead)


def test_a_router_that_starts_is_told_when_everything_of_its_own_is_read() -> None:
    sim = Simulation()
    router = Beginner(node_id="router-1", incarnation="0")
    sim.start(Ingest(node_id="ingest-1", store=sim.log_epochs))
    sim.start(Gateway(node_id="gateway-1"))
    sim.start(router)
    sim.ask(lambda: sim.cluster.create_topic("flights", 2, "keyed"))
    sim.wait(1)
    assert len(router.assignment.sources) == 2
    sim.open_window(router, lanes=2, hesitates=True)
    slow, quick = sim.lanes
    slow.hesitates = quick.hesitates = False
    quick.claim()
    sim.wait(1)
    assert router.told == 0
    slow.claim()
    sim.wait(1)
    assert router.told
    sim.restart()
    router.told = 0
    for node in (slow, quick, *sim.nodes.values()):
        sim.connect(node)
    sim.wait(1)
    assert router.told, "whoever leads hears it from the lanes, before or after the router"


# --- a coordinator that is back hears of the older one first -----------------------------------


def test_whoever_claimed_unheard_is_waited_for() -> None:
    world = begun()
    former = world.lane
    world.successor_claims_unheard()
    world.everybody_is_back()
    world.sim.connect(former)
    world.gateway.subscribe("s1")
    world.sim.wait(CLAIM_S + 1)
    world.nobody_was_told_too_early()


def test_whoever_claimed_unheard_and_died_has_left_all_that_anybody_was_told_of() -> None:
    world = begun()
    former = world.lane
    dead = world.successor_claims_unheard()
    world.sim.kill(dead)
    world.everybody_is_back()
    world.sim.connect(former)
    world.gateway.subscribe("s1")
    world.sim.wait(CLAIM_S + 1)
    world.goes_on_from_the_notes_of(dead)
    world.nobody_was_told_too_early()


def test_a_proof_that_shows_a_loss_leaves_the_rest_where_it_is() -> None:
    """A successor has claimed one of two partitions, and died before it said so."""
    world = begun(partitions=2)
    reader, (first, second) = world.lane, world.sim.cluster.refs()
    world.sim.open_window(world.router, hesitates=True)
    successor = world.lane
    taken = next(owner for owner in successor.planned if owner.ref == second)
    assert successor.claims(successor.fence(taken), taken)
    world.sim.kill(successor)
    world.sim.wait(CLAIM_S + 2)
    assert world.sim.readers(first) == [reader]
    world.sim.calm(LEASES_S)
    assert list(world.sim.unrest()) == []


def test_a_frozen_predecessor_that_thaws_ends_no_doubt() -> None:
    """It has nothing to save, so that only asking shows that it was overtaken long ago."""
    world = begun()
    former = world.lane
    former.frozen = True
    world.sim.disconnect(former)
    world.sim.open_window(world.router)
    dead = world.lane
    world.sim.wait(LEASES_S)
    world.sim.kill(dead)
    world.sim.restart()
    world.everybody_is_back()
    former.frozen = False
    world.sim.connect(former)
    world.gateway.subscribe("s1")
    world.sim.wait(CLAIM_S + 1)
    world.goes_on_from_the_notes_of(dead)
    world.nobody_was_told_too_early()


def test_a_lane_that_was_told_everything_and_cut_off_claims_nothing_by_itself() -> None:
    """While nobody hears of it, others are told that they have subscribed."""
    world = begun()
    former = world.lane
    world.sim.open_window(world.router, hesitates=True)
    cut_off = world.lane
    world.sim.restart()
    world.everybody_is_back()
    world.sim.connect(former)
    world.gateway.subscribe("s1")
    world.sim.wait(CLAIM_S + 2)
    assert world.gateway.has_subscribed("s1")
    cut_off.hesitates = False
    cut_off.claim()
    world.nobody_was_told_too_early()


# --- a router that went on by itself under the same epochs ---------------------------------------


def restarted_alone() -> tuple[Begun, Lane]:
    """The router's former self left a lane that nobody hears of, and died while the coordinator was
    away; returns that lane."""
    world = begun()
    former, survivor = world.router, world.lane
    world.sim.restart()
    former.alive = False
    world.sim.bury()
    world.router = Router(
        node_id="router-1",
        incarnation="1",
        assignment=former.assignment,
        topology=former.topology,
        window=former.window,
    )
    world.sim.nodes["router-1"] = world.router
    world.everybody_is_back()
    world.sim.open_window(world.router)
    world.sim.wait(LEASES_S)
    assert world.sim.readers(world.ref) == [world.lane]
    assert world.lane is not survivor
    return world, survivor


def test_a_lane_of_its_former_self_takes_nothing_back() -> None:
    world, survivor = restarted_alone()
    reader = world.lane
    world.sim.connect(survivor)
    world.sim.wait(1)
    assert world.sim.readers(world.ref) == [reader]


def test_a_lane_of_its_former_self_ends_no_doubt_about_its_successor() -> None:
    world, survivor = restarted_alone()
    world.sim.disconnect(world.lane)
    world.sim.connect(survivor)
    world.gateway.subscribe("s1")
    world.sim.wait(CLAIM_S + 1)
    world.nobody_was_told_too_early()


# --- a successor that never claims ---------------------------------------------------------------


def test_a_successor_that_dies_before_it_claims_takes_nothing_from_its_predecessor() -> None:
    world = begun()
    reader = world.lane
    world.sim.open_window(world.router, hesitates=True)
    world.sim.kill(world.lane)
    world.gateway.subscribe("s1")
    for _ in range(LEASES_S):
        world.sim.wait(1)
        assert world.sim.readers(world.ref) == [reader]
    assert world.gateway.has_subscribed("s1"), "its predecessor has shown that nobody else claimed"


def test_a_reader_that_can_not_prove_it_is_left_alone() -> None:
    """The store is away; whoever takes over would need it as well."""
    world = begun()
    reader = world.lane
    world.sim.open_window(world.router, hesitates=True)
    world.sim.kill(world.lane)
    world.sim.store_is_away = True
    epoch = reader.holds[world.ref].epoch
    for _ in range(LEASES_S):
        world.sim.wait(1)
        assert world.sim.readers(world.ref) == [reader]
    assert world.sim.cluster.sources.owners[world.ref].epoch == epoch


def test_of_two_that_were_about_to_claim_the_newer_one_stays_in_doubt() -> None:
    """The claim of the newer one is on its way when the older one is lost as well."""
    world = begun()
    for _ in range(2):
        world.sim.open_window(world.router, hesitates=True)
    older, newer = world.sim.lanes[-2:]
    world.sim.disconnect(newer)
    world.sim.wait(1)
    world.sim.disconnect(older)
    newest = max(one.fence for one in world.sim.cluster.lanes.unsaid.values() if one.fence)
    assert newest == newer.fence(newer.planned[0])


def test_what_another_epoch_was_given_for_is_in_doubt_no_more() -> None:
    """It wanted the partition under the former epoch, and can't have claimed it since."""
    world = begun()
    former = world.lane
    world.sim.open_window(world.router, hesitates=True)
    waiting = world.lane
    other = Router(node_id="router-2", incarnation="0")
    world.sim.start(other)
    world.sim.ask(lambda: world.sim.cluster.drain("router-1", world.sim.now_ms))
    for _ in range(5):
        world.sim.wait(1)
        former.let_go()
    world.sim.open_window(other)
    reader = world.lane
    world.sim.wait(1)
    world.sim.kill(waiting)
    assert not world.sim.cluster.lanes.in_doubt
    for _ in range(LEASES_S):
        world.sim.wait(1)
        assert world.sim.readers(world.ref) == [reader]


# --- a coordinator that has lost its store --------------------------------------------------------


def claimed_unheard(world: Begun) -> tuple[Lane, Lane]:
    """A lane, and its successor, which has claimed the position when the coordinator dies."""
    former = world.lane
    world.sim.open_window(world.router, hesitates=True)
    newer = world.lane
    session, newer.session, newer.hesitates = newer.session, None, False
    say, newer.say = newer.say, lambda _: None
    newer.claim(unheard=True)
    newer.session, newer.say = session, say
    assert world.sim.readers(world.ref) == [newer]
    world.sim.restart(with_nothing=True)
    return former, newer


def test_a_lane_that_is_heard_first_after_a_loss_of_memory_ends_no_doubt() -> None:
    world = begun()
    former, _ = claimed_unheard(world)
    world.sim.store_is_away = True
    world.sim.connect(former)
    world.everybody_is_back()
    world.sim.store_is_away = False
    former.prove()
    world.sim.bury()
    world.gateway.subscribe("s1")
    for _ in range(CLAIM_S):
        world.sim.wait(1)
        world.nobody_was_told_too_early()


def test_a_claim_that_is_on_its_way_during_a_loss_of_memory_is_waited_for() -> None:
    world = begun()
    former = world.lane
    world.sim.open_window(world.router, hesitates=True)
    newer = world.lane
    world.sim.restart(with_nothing=True)
    world.everybody_is_back()
    world.sim.connect(former)
    world.gateway.subscribe("s1")
    world.sim.wait(CLAIM_S - 1)
    newer.hesitates = False
    newer.claim(unheard=True)
    world.nobody_was_told_too_early()
