"""What a scenario may expect; scenario.py explains the words."""

from __future__ import annotations

from collections import Counter

from headgate.decide.coordination.views.connector_status import describe_connector
from headgate.model.connector import intake_ref
from headgate.model.topology import Owner
from tests.decide.coordination.peers import Gateway
from tests.decide.coordination.stage import Stage, Vocabulary, listed, partition, partitions

expectation = Vocabulary()


@expectation(r"(owner|log) (\S+) (\S+)(?: epoch (\d+))?")
def _owned(stage: Stage, table: str, ref: str, node_id: str, epoch: str | None) -> None:
    owners = {"owner": stage.sim.cluster.sources, "log": stage.sim.cluster.logs}[table].owners
    owner = owners.get(partition(ref), Owner(partition(ref), "", 0))
    assert (owner.node_id or "nobody") == node_id, f"it is {owner.node_id or 'nobody'}"
    assert epoch is None or owner.epoch == int(epoch), f"the epoch is {owner.epoch}"


@expectation(r"shares of (\S+) (.+)")
def _shares(stage: Stage, topic: str, shares: str) -> None:
    found = Counter(o.node_id for o in stage.sim.cluster.logs.owned() if o.ref.topic == topic)
    told = ", ".join(f"{node_id} {count}" for node_id, count in sorted(found.items()))
    assert told == shares, f"they are {told}"


@expectation(r"intake (\S+) (\S+)(?: epoch (\d+))?")
def _read(stage: Stage, name: str, node_id: str, epoch: str | None) -> None:
    owner = stage.sim.cluster.intakes.owners.get(intake_ref(name), Owner(intake_ref(name), "", 0))
    assert (owner.node_id or "nobody") == node_id, f"it is {owner.node_id or 'nobody'}"
    assert epoch is None or owner.epoch == int(epoch), f"the epoch is {owner.epoch}"


@expectation(r"connectors (.+)")
def _connectors(stage: Stage, names: str) -> None:
    found = set(stage.sim.cluster.connectors)
    assert found == listed(names), f"they are {sorted(found)}"


@expectation(r"beginning of (\S+) (\d+) at (\S+)( stored)?")
def _beginning(stage: Stage, name: str, epoch: str, begin_at: str, stored: str | None) -> None:
    one = stage.sim.cluster.connectors[name]
    found = one.beginning, one.begin_at, one.begun
    assert found == (int(epoch), begin_at, stored is not None), f"it is {found}"


@expectation(r"skipped of (\S+) (.+)")
def _skipped(stage: Stage, name: str, positions: str) -> None:
    found = [one.position for one in stage.sim.cluster.connectors[name].skipped]
    assert found == ([] if positions == "nothing" else positions.split(", ")), f"it is {found}"


@expectation(r"state of (\S+) (\S+)")
def _state(stage: Stage, name: str, state: str) -> None:
    found = describe_connector(stage.sim.cluster, name, now_ms=stage.sim.now_ms)
    assert found.state == state, f"it is {found.state}: {found.reason}"


@expectation(r"assigned (\S+) (.+)")
def _assigned(stage: Stage, router_id: str, refs: str) -> None:
    found = {owner.ref for owner in stage.router(router_id).assignment.sources}
    assert found == partitions(refs), f"it knows of {sorted(map(str, found))}"


@expectation(r"reads (\S+) (\S+)")
def _reads(stage: Stage, ref: str, router_id: str) -> None:
    found = [lane.node_id for lane in stage.sim.readers(partition(ref))] or ["nobody"]
    assert found == [router_id], f"read by {found}"


@expectation(r"moves none")
def _no_moves(stage: Stage) -> None:
    moves = stage.sim.cluster.handoffs.moves()
    assert not moves, f"there are {moves}"


@expectation(r"moves (\S+) (\S+) -> (\S+) (releasing|starting)")
def _moves(stage: Stage, ref: str, from_id: str, to_id: str, phase: str) -> None:
    handoffs = stage.sim.cluster.handoffs
    handoff = handoffs.by_ref.get(partition(ref))
    assert handoff is not None, f"it isn't; {handoffs.moves()} are"
    found = (handoff.move.from_id, handoff.move.to_id)
    assert found == (from_id, to_id), f"it moves from {found[0]} to {found[1]}"
    now = handoffs.phase(partition(ref), stage.sim.cluster.sources)
    assert now == phase, f"it is {now}"


@expectation(r"put (\S+) (?:to (\d+)|not yet)")
def _put(stage: Stage, ref: str, settled: str | None) -> None:
    found = [reset.settled for reset in stage.sim.put.get(partition(ref), [])]
    assert found == ([] if settled is None else [int(settled)]), f"it was put to {found}"


@expectation(r"asked (\S+) to let go of (.+)")
def _asked(stage: Stage, router_id: str, refs: str) -> None:
    found = {ref for lane in stage.lanes(router_id) for ref in lane.asked}
    assert found == partitions(refs), f"asked for {sorted(map(str, found))}"


@expectation(r"told (\S+) to drop (.+)")
def _told(stage: Stage, router_id: str, refs: str) -> None:
    found = {ref for lane in stage.sim.ever if lane.node_id == router_id for ref in lane.dropped}
    assert found == partitions(refs), f"told to drop {sorted(map(str, found))}"


@expectation(r"window of (\S+) (ends|goes on)")
def _window_ends(stage: Stage, router_id: str, how: str) -> None:
    router = stage.router(router_id)
    newest = [x for x in stage.sim.lanes_of(router) if x.window == router.window]
    ends = {lane.told_to_end for lane in newest}
    assert ends == {how == "ends"}, f"of its lanes {newest}"


@expectation(r"members (.+)")
def _members(stage: Stage, node_ids: str) -> None:
    found = set(stage.sim.cluster.members)
    assert found == listed(node_ids), f"they are {sorted(found)}"


@expectation(r"(topics|deleted) (.+)")
def _topics(stage: Stage, which: str, names: str) -> None:
    found = set(getattr(stage.sim.cluster, which))
    assert found == listed(names), f"they are {sorted(found)}"


@expectation(r"records (.+)")
def _records(stage: Stage, refs: str) -> None:
    found = set(stage.sim.log_records)
    assert found == partitions(refs), f"they are in {sorted(map(str, found))}"


@expectation(r"refused(?: (.+))?")
def _refused(stage: Stage, text: str | None) -> None:
    assert stage.refusal, "nobody was"
    assert (text or "") in stage.refusal, f"the words were {stage.refusal!r}"


@expectation(r"(not )?learning")
def _learning(stage: Stage, no: str | None) -> None:
    assert stage.sim.cluster.learning.is_on is (no is None), "it is the other way round"


@expectation(r"(not )?pushed (.+)")
def _pushed(stage: Stage, no: str | None, names: str) -> None:
    for name, peer in stage.everybody():
        if name in listed(names):
            pushed = peer.pushes - stage.pushes.get(name, 0)
            assert (pushed > 0) is (no is None), f"{name} got {pushed}"


@expectation(r"routed (\S+) by (all|some|nobody)")
def _routed(stage: Stage, topic: str, who: str) -> None:
    cluster = stage.sim.cluster
    floor = cluster.adoption_floor(topic)
    found = "nobody" if floor == 0 else "all" if floor == cluster.generation else "some"
    assert found == who, f"by {found}: the floor is {floor} of {cluster.generation}"


@expectation(r"(not )?subscribed (\S+)")
def _subscribed(stage: Stage, no: str | None, name: str) -> None:
    [gateway] = [
        node
        for node in stage.sim.nodes.values()
        if isinstance(node, Gateway) and name in node.subscriptions
    ]
    told = f"registered at {gateway.subscriptions[name]}, the floor is {gateway.floor}"
    assert gateway.has_subscribed(name) is (no is None), told


@expectation(r"cut (\S+)")
def _cut(stage: Stage, node_id: str) -> None:
    assert stage.node(node_id).session is None, "its stream goes on"


@expectation(r"(not )?resumed (\S+)")
def _resumed(stage: Stage, no: str | None, node_id: str) -> None:
    assert stage.node(node_id).resumed is (no is None), "its welcome said the other"


@expectation(r"matches (\S+) (.+)")
def _matches(stage: Stage, router_id: str, subscriptions: str) -> None:
    for lane in stage.lanes(router_id):
        found = lane.subscriptions
        assert found == listed(subscriptions), f"it matches with {sorted(found)}"


@expectation(r"calm")
def _calm(stage: Stage) -> None:
    unrest = list(stage.sim.unrest())
    assert not unrest, "; ".join(unrest)
