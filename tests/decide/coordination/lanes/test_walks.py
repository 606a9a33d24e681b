"""However lanes follow each other, with the coordinator or without it: nobody is told "subscribed"
while a record can be settled by a lane that doesn't know of it.

Random walks with one router, and only what concerns lanes: a successor claims late, or when its
stream has broken, the store of positions is away, a lane dies and another one goes on from its
notes, the coordinator forgets everything and hears of the oldest lane first. What leads to trouble
comes often, which plain chance would not do. The books are the simulation's.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Literal

import pytest

from headgate.decide.coordination.lanes.lanes import CLAIM_MS
from headgate.decide.lane.checkpoints import Reset
from headgate.errors import HeadgateError
from tests.decide.coordination.peers import Gateway, Ingest, Lane, Peer, Router
from tests.decide.coordination.simulation import Simulation

CALM_S = 120
"""By then every lease has ended, and every window that was told to."""
MOST_LANES = 5
STEPS = 60


def any_lane(_: Lane) -> bool:
    return True


class Walk:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.path: list[str] = []
        self.routers = self.subscriptions = 0
        self.lands_before_ms: dict[int, int] = {}
        """Until when a claim may reach the store, of lanes that were cut off as they claimed."""
        self.sim = Simulation()
        self.gateway = Gateway(node_id="gateway-1")
        self.sim.start(Ingest(node_id="ingest-1", store=self.sim.log_epochs))
        self.sim.start(self.gateway)
        self.sim.start(Router(node_id="router-1", incarnation="0"))
        self.sim.ask(lambda: self.sim.cluster.create_topic("flights", 2, "keyed"))
        self.sim.calm(3)

    def run(self, *, about: Literal["claims", "everything"]) -> None:
        weights: dict[Callable[[], object], int] = {
            self.a_window_opens: 4,
            self.a_lane_claims_at_last: 4,
            self.a_lane_is_cut_off: 6,
            self.its_claim_arrives: 6,
            self.a_lane_comes_back: 6,
            self.a_lane_proves: 5,
            self.a_lane_saves: 2,
            self.the_store_goes_or_comes: 3,
            self.the_coordinator_restarts: 2,
            self.somebody_subscribes: 6,
            self.a_moment_passes: 5,
        }
        if about == "everything":
            weights |= {
                self.a_while_passes: 2,
                self.a_lane_ends: 2,
                self.the_dead_are_run_again_from_their_notes: 2,
                self.a_position_is_reset: 1,
                self.a_lane_lets_go: 2,
                self.a_lane_adopts_late_or_at_once: 1,
                self.a_lane_freezes_or_thaws: 1,
                self.the_router_is_killed_and_goes_on_from_its_notes: 1,
            }
        for step in self.chance.choices(list(weights), list(weights.values()), k=STEPS):
            self.take(step)

    def take(self, step: Callable[[], object]) -> None:
        self.path.append(f"{step.__name__} {step() or ''}")
        self.sim.bury()
        self.whoever_was_told_subscribed_is_matched()

    @property
    def router(self) -> Router:
        router = self.sim.nodes["router-1"]
        assert isinstance(router, Router)
        return router

    def some_lane(self, fits: Callable[[Lane], bool] = any_lane) -> Lane | None:
        found = [lane for lane in self.sim.lanes if fits(lane)]
        return self.chance.choice(found) if found else None

    # --- windows ---------------------------------------------------------------------------------

    def a_window_opens(self) -> None:
        if len(self.sim.lanes) < MOST_LANES:
            hesitates = self.chance.random() < 0.7
            lanes = self.chance.choice((1, 1, 2))
            self.sim.open_window(self.router, lanes=lanes, hesitates=hesitates)

    def a_lane_claims_at_last(self) -> str:
        lane = self.some_lane(lambda one: not one.claimed and one.session is not None)
        if lane is None or self.sim.store_is_away:
            return "nobody"
        lane.hesitates = False
        lane.claim()
        return _name(lane)

    def its_claim_arrives(self) -> str:
        """Of one that was cut off meanwhile, or of which nobody hears it."""
        lane = self.some_lane(
            lambda one: not one.claimed and self.sim.now_ms < self.lands_before_ms.get(id(one), 0)
        )
        if lane is None or self.sim.store_is_away:
            return "nobody"
        lane.hesitates = False
        if lane.session is None:
            lane.say = lambda _: None
        lane.claim(unheard=True)
        return _name(lane)

    def a_lane_proves(self) -> str:
        lane = self.some_lane(lambda one: one.unproved and one.session is not None)
        if lane is None or self.sim.store_is_away:
            return "nobody"
        lane.prove()
        return _name(lane)

    def a_lane_saves(self) -> None:
        if (lane := self.some_lane()) is not None:
            self.sim.save(lane)

    def a_lane_lets_go(self) -> None:
        if (lane := self.some_lane(lambda one: bool(one.asked))) is not None:
            lane.let_go()

    def a_lane_adopts_late_or_at_once(self) -> None:
        if (lane := self.some_lane()) is not None:
            lane.late = not lane.late
            lane.catch_up()

    # --- faults ----------------------------------------------------------------------------------

    def a_lane_is_cut_off(self) -> str:
        """It goes on reading, and a claim of its own may be on its way."""
        lane = self.some_lane(lambda one: one.session is not None)
        if lane is None:
            return "nobody"
        self.may_be_claiming(lane)
        self.sim.disconnect(lane)
        return _name(lane)

    def may_be_claiming(self, lane: Lane) -> None:
        if lane.session is not None and lane.revision and not lane.claimed:
            self.lands_before_ms[id(lane)] = self.sim.now_ms + CLAIM_MS

    def a_lane_comes_back(self) -> str:
        lane = self.some_lane(lambda one: one.session is None)
        if lane is None:
            return "nobody"
        self.sim.connect(lane)
        return _name(lane)

    def a_lane_ends(self) -> None:
        if (lane := self.some_lane()) is not None:
            if self.chance.random() < 0.3:
                lane.end()
            self.sim.kill(lane)

    def a_lane_freezes_or_thaws(self) -> None:
        if (lane := self.some_lane()) is not None:
            lane.frozen = not lane.frozen
            if not lane.frozen:
                lane.catch_up()

    def the_dead_are_run_again_from_their_notes(self) -> None:
        for dead in [lane for lane in reversed(self.sim.ever) if not lane.alive]:
            self.sim.go_on_from_notes(dead, self.router)

    def the_router_is_killed_and_goes_on_from_its_notes(self) -> None:
        former = self.router
        self.sim.kill(former)
        self.routers += 1
        self.sim.nodes["router-1"] = Router(
            node_id="router-1",
            incarnation=str(self.routers),
            assignment=former.assignment,
            topology=former.topology,
            window=former.window + 1,
        )
        self.sim.connect(self.router)

    def the_store_goes_or_comes(self) -> str:
        self.sim.store_is_away = not self.sim.store_is_away
        return "away" if self.sim.store_is_away else "back"

    def the_coordinator_restarts(self) -> str:
        """With its memory or without; some lanes are back before anybody else is."""
        for lane in self.sim.lanes:
            self.may_be_claiming(lane)
        with_nothing = self.chance.random() < 0.5
        self.sim.restart(with_nothing=with_nothing)
        lanes = [lane for lane in self.sim.lanes if self.chance.random() < 0.6]
        peers: list[Peer] = [*self.sim.nodes.values(), *lanes]
        self.chance.shuffle(peers)
        for peer in peers:
            if peer.alive:
                self.sim.connect(peer)
        order = [_name(one) if isinstance(one, Lane) else one.node_id for one in peers]
        return f"with {'nothing' if with_nothing else 'its store'}, back: {order}"

    def a_position_is_reset(self) -> None:
        cluster, reset = self.sim.cluster, Reset(1_000 + len(self.path))
        if refs := cluster.refs():
            with contextlib.suppress(HeadgateError):  # it learns, or another one is under way
                self.sim.ask(lambda: cluster.reset(refs[0], reset, self.sim.now_ms))

    # --- subscribers and time --------------------------------------------------------------------

    def somebody_subscribes(self) -> str:
        self.subscriptions += 1
        self.gateway.subscribe(f"s{self.subscriptions}")
        return f"s{self.subscriptions}"

    def a_moment_passes(self) -> str:
        return self.time_passes(self.chance.choice((1, 1, 2, 4)))

    def a_while_passes(self) -> str:
        return self.time_passes(self.chance.choice((6, 11, 31)))

    def time_passes(self, seconds: int) -> str:
        self.sim.wait(seconds)
        return f"{seconds} s"

    # --- what holds ------------------------------------------------------------------------------

    def whoever_was_told_subscribed_is_matched(self) -> None:
        if self.gateway.session is None:
            return
        told = {name for name in self.gateway.subscriptions if self.gateway.has_subscribed(name)}
        for ref in self.sim.cluster.refs():
            for lane in self.sim.readers(ref):
                missing = told - lane.subscriptions
                assert not missing, f"{_name(lane)} settles {ref} without {missing}: {self}"

    def all_is_read_once_it_is_calm(self) -> None:
        """After any history, and whoever asked has subscribed."""
        for _ in range(CALM_S):
            self.sim.calm(1)
            self.whoever_was_told_subscribed_is_matched()
            if not list(self.sim.unrest()):
                return
        assert list(self.sim.unrest()) == [], str(self)

    def __str__(self) -> str:
        return "\n  ".join([f"walk {self.seed}:", *self.path])


def _name(lane: Lane) -> str:
    return f"window {lane.window}.{lane.attempt}"


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_nobody_is_told_too_early_however_claims_and_streams_cross(first: int) -> None:
    for seed in range(first, first + 40):
        Walk(seed).run(about="claims")


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_after_any_walk_everything_is_read_again(first: int) -> None:
    for seed in range(first, first + 20):
        walk = Walk(seed)
        walk.run(about="everything")
        walk.all_is_read_once_it_is_calm()
