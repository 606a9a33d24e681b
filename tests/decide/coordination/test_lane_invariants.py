"""However lanes follow each other, with the coordinator or without it: nobody is told "subscribed"
while a record can be settled by a lane that doesn't know of it.

One router, and only what concerns lanes: a successor claims late, the store of positions is away, a
lane dies and another one goes on from its notes. The books are the simulation's.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.decide.coordination.peers import Gateway, Ingest, Lane, Router
from tests.decide.coordination.simulation import Simulation

CALM_S = 120
"""By then every lease has ended, and every window that was told to."""


class LaneMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.sim = Simulation()
        self.routers = self.subscriptions = 0
        self.gateway = Gateway(node_id="gateway-1")
        self.sim.start(Ingest(node_id="ingest-1", store=self.sim.log_epochs))
        self.sim.start(self.gateway)
        self.sim.start(Router(node_id="router-1", incarnation="0"))
        self.sim.ask(lambda: self.sim.cluster.create_topic("flights", 2, "keyed"))
        self.sim.calm(3)

    @property
    def router(self) -> Router:
        router = self.sim.nodes["router-1"]
        assert isinstance(router, Router)
        return router

    def some_lane(self, data: st.DataObject) -> Lane | None:
        if not self.sim.lanes:
            return None
        return self.sim.lanes[data.draw(st.integers(0, len(self.sim.lanes) - 1))]

    # --- windows ---------------------------------------------------------------------------------

    @rule(lanes=st.integers(1, 2), hesitates=st.booleans())
    def a_window_opens(self, lanes: int, hesitates: bool) -> None:
        self.sim.open_window(self.router, lanes=lanes, hesitates=hesitates)

    @rule(data=st.data())
    def a_lane_claims_at_last(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None and not self.sim.store_is_away:
            lane.hesitates = False
            lane.claim()

    @rule(data=st.data(), dies=st.booleans())
    def a_lane_claims_and_nobody_hears(self, data: st.DataObject, dies: bool) -> None:
        lane = self.some_lane(data)
        if lane is None or lane.session is None or self.sim.store_is_away:
            return
        session, lane.session, lane.hesitates = lane.session, None, False
        lane.claim(unheard=True)
        lane.session = session
        if dies:
            self.sim.kill(lane)
        else:
            self.sim.disconnect(lane)
        self.sim.bury()

    @rule(data=st.data())
    def a_lane_saves(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None:
            self.sim.save(lane)
            self.sim.bury()

    @rule(data=st.data(), late=st.booleans())
    def a_lane_adopts_late_or_at_once(self, data: st.DataObject, late: bool) -> None:
        if (lane := self.some_lane(data)) is not None:
            lane.late = late
            lane.catch_up()

    # --- faults ----------------------------------------------------------------------------------

    @rule(data=st.data())
    def a_lane_is_cut_off_and_goes_on_reading(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None:
            self.sim.disconnect(lane)

    @rule(data=st.data())
    def a_lane_comes_back(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None:
            self.sim.connect(lane)
            self.sim.bury()

    @rule(data=st.data(), on_purpose=st.booleans())
    def a_lane_ends(self, data: st.DataObject, on_purpose: bool) -> None:
        if (lane := self.some_lane(data)) is not None:
            if on_purpose:
                lane.end()
            self.sim.kill(lane)

    @rule()
    def whoever_is_dead_is_run_again_from_its_notes(self) -> None:
        for dead in [lane for lane in reversed(self.sim.ever) if not lane.alive]:
            self.sim.go_on_from_notes(dead, self.router)

    @rule()
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

    @rule()
    def the_router_comes_back(self) -> None:
        self.sim.connect(self.router)

    @rule(away=st.booleans())
    def the_store_of_positions_is_away_or_back(self, away: bool) -> None:
        self.sim.store_is_away = away

    @rule(with_nothing=st.booleans(), back=st.booleans())
    def the_coordinator_restarts(self, with_nothing: bool, back: bool) -> None:
        self.sim.restart(with_nothing=with_nothing)
        for node in self.sim.nodes.values():
            self.sim.connect(node)
        for lane in list(self.sim.lanes) if back else []:
            self.sim.connect(lane)
        self.sim.bury()

    # --- subscribers and time --------------------------------------------------------------------

    @rule()
    def somebody_subscribes(self) -> None:
        self.subscriptions += 1
        self.gateway.subscribe(f"s{self.subscriptions}")

    @rule(seconds=st.sampled_from((1, 6, 31)))
    def time_passes(self, seconds: int) -> None:
        self.sim.wait(seconds)

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def whoever_was_told_subscribed_is_matched(self) -> None:
        if self.gateway.session is None:
            return
        told = {name for name in self.gateway.subscriptions if self.gateway.has_subscribed(name)}
        for ref in self.sim.cluster.refs():
            for lane in self.sim.readers(ref):
                assert told <= lane.subscriptions, f"{lane} settles {ref} without {told}"

    def teardown(self) -> None:
        """After any history all is read once it is calm, and whoever asked has subscribed."""
        if not hasattr(self, "sim"):
            return
        for _ in range(CALM_S):
            self.sim.calm(1)
            self.whoever_was_told_subscribed_is_matched()
            if not list(self.sim.unrest()):
                break
        assert list(self.sim.unrest()) == []


TestLaneInvariants = LaneMachine.TestCase
TestLaneInvariants.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
