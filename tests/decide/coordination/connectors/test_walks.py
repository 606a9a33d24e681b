"""Whatever happens in whatever order: one reader counts, what operators wanted is so, and once it
is calm every connector is read by one node.

The oracle is naive: what was wished and not refused, and which process has ever read what under
which epoch, as the logs know it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.decide.coordination.connectors.connecting import (
    Create,
    Delete,
    Pause,
    Reset,
    Skip,
    Wish,
)
from headgate.errors import HeadgateError
from headgate.model.connector import Connector, ConnectorRoute
from tests.decide.coordination.peers import Ingest, Router
from tests.decide.coordination.simulation import TIMING, Simulation

NODES = ("ingest-1", "ingest-2", "ingest-3")
NAMES = ("orders", "users", "visits")
CALM_S = (TIMING.learn_for_ms + TIMING.lease_ms) // 1_000 + 30
some_node = st.sampled_from(NODES)
some_name = st.sampled_from(NAMES)


@dataclass
class Wanted:
    """What a connector should be, for all that operators know."""

    paused: bool = False
    begin_at: str = "now"
    skipped: int = 0


class ConnectorMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.sim = Simulation()
        self.processes = self.beginnings = 0
        self.wanted: dict[str, Wanted] = {}
        self.unsure: set[str] = set()
        """Connectors of which the coordinator failed while it decided something."""
        self.read: dict[tuple[str, int], str] = {}
        """Which process has read under which epoch, as far as the logs let it."""
        self.sim.start(Router(node_id="router-1", incarnation="1"))
        self.node_starts("ingest-1")
        self.sim.ask(lambda: self.sim.cluster.create_topic("changes", 2, "keyed"))
        self.wishes(Create(self.connector("orders")), "orders")

    def connector(self, name: str) -> Connector:
        routes = (ConnectorRoute("*", "changes"),)
        return Connector(name, "mongodb", routes, {"uri": "mongodb://db-1"})

    # --- nodes -----------------------------------------------------------------------------------

    @rule(node_id=some_node)
    def node_starts(self, node_id: str) -> None:
        self.processes += 1
        self.sim.start(
            Ingest(
                node_id=node_id,
                incarnation=str(self.processes),
                store=self.sim.log_epochs,
                records=self.sim.log_records,
                taken=self.sim.taken,
            )
        )

    def node(self, node_id: str) -> Ingest | None:
        found = self.sim.nodes.get(node_id)
        return found if isinstance(found, Ingest) else None

    @rule(node_id=some_node, again=st.booleans())
    def node_is_killed(self, node_id: str, again: bool) -> None:
        if (node := self.node(node_id)) is not None:
            self.sim.kill(node)
            if again:
                self.node_starts(node_id)

    @rule(node_id=some_node)
    def node_is_cut_off(self, node_id: str) -> None:
        if (node := self.node(node_id)) is not None:
            self.sim.disconnect(node)

    @rule(node_id=some_node)
    def node_comes_back(self, node_id: str) -> None:
        if (node := self.node(node_id)) is not None:
            self.sim.connect(node)

    @rule(node_id=some_node)
    def node_leaves(self, node_id: str) -> None:
        if (node := self.node(node_id)) is not None:
            self.sim.leave(node)

    @rule(node_id=some_node, frozen=st.booleans())
    def node_freezes_or_thaws(self, node_id: str, frozen: bool) -> None:
        if (node := self.node(node_id)) is not None:
            node.frozen = frozen
            if not frozen:
                node.catch_up()

    @rule(node_id=some_node, draining=st.booleans())
    def node_is_drained_or_not(self, node_id: str, draining: bool) -> None:
        sim = self.sim
        try:
            sim.ask(lambda: sim.cluster.drain(node_id, sim.now_ms, draining=draining))
        except HeadgateError:
            pass

    @rule(node_id=some_node)
    def something_is_stored(self, node_id: str) -> None:
        if (node := self.node(node_id)) is not None:
            node.store_changes()

    @rule(node_id=some_node, name=some_name, number=st.integers(1, 3))
    def a_reader_stops(self, node_id: str, name: str, number: int) -> None:
        node = self.node(node_id)
        if node is not None and name in node.reads:
            node.stopped[name] = f"p{number}"
            node.check_in()

    # --- operators -------------------------------------------------------------------------------

    def wishes(self, wish: Wish, name: str) -> bool:
        """Whether it was done, for all that whoever wished knows."""
        struck = self.sim.faults.struck
        try:
            self.sim.ask(lambda: self.sim.cluster.operate_connector(wish))
        except HeadgateError:
            return False
        if self.sim.faults.struck != struck:
            self.unsure.add(name)
            return False
        if isinstance(wish, Create):
            self.wanted.setdefault(name, Wanted())
        return True

    @rule(name=some_name)
    def connector_is_created(self, name: str) -> None:
        is_new = name not in self.sim.cluster.connectors
        if self.wishes(Create(self.connector(name)), name) and is_new:
            self.wanted[name] = Wanted()
            self.it_begins_above_all_that_is_stored(name)

    @rule(name=some_name)
    def connector_is_deleted(self, name: str) -> None:
        if self.wishes(Delete(name), name):
            self.wanted.pop(name, None)

    @rule(name=some_name, paused=st.booleans())
    def connector_is_paused_or_not(self, name: str, paused: bool) -> None:
        if self.wishes(Pause(name, paused), name) and name in self.wanted:
            self.wanted[name].paused = paused

    @rule(name=some_name)
    def connector_is_reset(self, name: str) -> None:
        self.beginnings += 1
        begin_at = f"position:{self.beginnings}"
        if self.wishes(Reset(name, begin_at), name) and name in self.wanted:
            self.wanted[name].begin_at = begin_at
            self.it_begins_above_all_that_is_stored(name)

    @rule(name=some_name)
    def a_change_is_skipped(self, name: str) -> None:
        known = self.sim.cluster.connectors.get(name)
        before = known.skip if known is not None else ""
        if self.wishes(Skip(name, self.sim.now_ms), name) and name in self.wanted:
            now = self.sim.cluster.connectors.get(name)
            self.wanted[name].skipped += now is not None and now.skip != before

    def it_begins_above_all_that_is_stored(self, name: str) -> None:
        """Nothing that a log has of an earlier beginning is taken for one of this."""
        found = self.sim.cluster.connectors.get(name)
        if found is None or self.sim.has_forgotten:
            return
        epochs = [epoch for known, epoch in self.read if known == name]
        stored = self.sim.taken[name].beginning if name in self.sim.taken else 0
        assert found.beginning > stored
        assert found.beginning > max((e for e in epochs if e != self._epoch(name)), default=0)

    def _epoch(self, name: str) -> int:
        return next(o.epoch for r, o in self.sim.cluster.intakes.owners.items() if r.topic == name)

    # --- the coordinator and time ----------------------------------------------------------------

    @rule(back=st.booleans())
    def coordinator_restarts(self, back: bool) -> None:
        self.sim.restart()
        self._all_back(back)

    @rule(back=st.booleans())
    def coordinator_restarts_with_nothing(self, back: bool) -> None:
        """Somebody who remembers comes first."""
        witness = self.sim.nodes["router-1"]
        if not witness.topology.topics:
            return
        self.sim.restart(with_nothing=True)
        self.unsure.update(NAMES)  # what nobody had heard of yet is lost with it
        self.sim.connect(witness)
        self._all_back(back)

    def _all_back(self, back: bool) -> None:
        for peer in list(self.sim.nodes.values()):
            if back and peer.session is None:
                self.sim.connect(peer)

    @rule()
    def coordinator_dies_between_the_next_two_effects(self) -> None:
        self.sim.dies_after_persist = True
        self.unsure.update(NAMES)

    @rule(lines=st.integers(1, 1_500))
    def coordinator_fails_within_a_decision(self, lines: int) -> None:
        self.sim.faults.left = lines

    @rule(seconds=st.sampled_from((1, 6, 31)))
    def time_passes(self, seconds: int) -> None:
        self.sim.wait(seconds)

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def no_epoch_is_read_under_by_two_processes(self) -> None:
        for name, taken in self.sim.taken.items():
            if taken.epoch:
                before = self.read.setdefault((name, taken.epoch), taken.process)
                assert before == taken.process, f"{name} under {taken.epoch}"

    @invariant()
    def no_epoch_is_given_to_two_processes(self) -> None:
        """Unless whoever gave it is forgotten: then the logs know better, and are asked."""
        for name, taken in self.sim.taken.items():
            epochs = Counter(epoch for epoch, _ in taken.told)
            twice = [epoch for epoch, processes in epochs.items() if processes > 1]
            assert not twice or self.sim.has_forgotten, f"{name} under {twice}: {taken.told}"

    @invariant()
    def what_operators_wanted_is_so(self) -> None:
        cluster = self.sim.cluster
        if cluster.learning.is_on:
            return
        certain = {n: one for n, one in self.wanted.items() if n not in self.unsure}
        assert certain.keys() <= cluster.connectors.keys()
        assert cluster.connectors.keys() - self.unsure <= self.wanted.keys()
        for name, one in certain.items():
            found = cluster.connectors[name]
            skipped = len(found.skipped)
            assert Wanted(found.paused, found.begin_at, skipped) == one, name

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.sim.dies_after_persist = False
        self.sim.faults.left = None
        for _ in range(CALM_S):
            self.sim.calm(1)
            if not list(self.sim.unrest()):
                break
        assert list(self.sim.unrest()) == []
        self.what_operators_wanted_is_so()
        owners = self.sim.cluster.intakes.owned()
        self.sim.calm(21)
        assert self.sim.cluster.intakes.owned() == owners


TestConnectorWalks = ConnectorMachine.TestCase
TestConnectorWalks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
