"""What may happen in a scenario; scenario.py explains the words."""

from __future__ import annotations

from headgate.decide.coordination.connectors import connecting
from headgate.decide.lane.checkpoints import Reset
from headgate.model.connector import Connector, ConnectorRoute
from headgate.model.event import Fence
from tests.decide.coordination.peers import Client, Gateway, Ingest, Peer, Router, Taken
from tests.decide.coordination.stage import Stage, Vocabulary, listed, partition

SETTLE_S = 130
"""Longer than the longest learning, a lease and a handoff together."""

event = Vocabulary()


@event(r"join (\S+)(?: as (\S+))?(?: weight (\S+))?")
def _join(stage: Stage, node_id: str, role: str | None, weight: str | None) -> None:
    stage.processes += 1
    incarnation = str(stage.processes)
    peer: Peer
    match role or node_id.partition("-")[0]:
        case "router":
            peer = Router(node_id=node_id, incarnation=incarnation, weight=float(weight or 1))
        case "ingest":
            peer = Ingest(
                node_id=node_id,
                incarnation=incarnation,
                store=stage.sim.log_epochs,
                records=stage.sim.log_records,
                taken=stage.sim.taken,
            )
        case _:
            peer = Gateway(node_id=node_id, incarnation=incarnation)
    stage.sim.start(peer)
    stage.refusal = peer.refused


@event(r"client (\S+) routes (.+)")
def _client(stage: Stage, node_id: str, topics: str) -> None:
    stage.sim.start(Client(node_id=node_id, topics=tuple(sorted(listed(topics)))))


@event(r"topic (\S+) (\d+)")
def _topic(stage: Stage, name: str, count: str) -> None:
    cluster = stage.sim.cluster
    stage.sim.ask(lambda: cluster.create_topic(name, int(count), "keyed"))


@event(r"delete (\S+)")
def _delete(stage: Stage, name: str) -> None:
    stage.sim.ask(lambda: stage.sim.cluster.delete_topic(name))


@event(r"connector (\S+) to (\S+)")
def _connector(stage: Stage, name: str, topic: str) -> None:
    routes = (ConnectorRoute("*", topic),)
    settings = {"uri": "mongodb://db-1"}
    _operate(stage, connecting.Create(Connector(name, "mongodb", routes, settings)))


@event(r"connector (\S+) is deleted")
def _connector_deleted(stage: Stage, name: str) -> None:
    _operate(stage, connecting.Delete(name))


@event(r"connector (\S+) is (paused|resumed)")
def _connector_paused(stage: Stage, name: str, how: str) -> None:
    _operate(stage, connecting.Pause(name, how == "paused"))


@event(r"connector (\S+) skips( \S+)?")
def _connector_skips(stage: Stage, name: str, position: str | None) -> None:
    _operate(stage, connecting.Skip(name, stage.sim.now_ms, (position or "").strip()))


@event(r"connector (\S+) is reset to (\S+)")
def _connector_reset(stage: Stage, name: str, begin_at: str) -> None:
    _operate(stage, connecting.Reset(name, begin_at))


def _operate(stage: Stage, wish: connecting.Wish) -> None:
    stage.sim.ask(lambda: stage.sim.cluster.operate_connector(wish))


@event(r"changes (\S+)")
def _changes(stage: Stage, node_id: str) -> None:
    stage.ingest(node_id).store_changes()


@event(r"(\S+) stops (\S+) at (\S+)")
def _stops(stage: Stage, node_id: str, name: str, position: str) -> None:
    stage.ingest(node_id).stopped[name] = position
    stage.ingest(node_id).check_in()


@event(r"logs have (\S+) at epoch (\d+)")
def _logs_have(stage: Stage, name: str, epoch: str) -> None:
    stage.sim.taken[name] = Taken(int(epoch), "somebody", int(epoch))


@event(r"window (\S+)(?: lanes (\d+))?")
def _window(stage: Stage, router_id: str, lanes: str | None) -> None:
    stage.sim.open_window(stage.router(router_id), lanes=int(lanes or 1))


@event(r"lets go (\S+)")
def _lets_go(stage: Stage, router_id: str) -> None:
    for lane in stage.lanes(router_id):
        lane.let_go()
    stage.sim.bury()


@event(r"saves (\S+)")
def _saves(stage: Stage, router_id: str) -> None:
    for lane in stage.lanes(router_id):
        stage.sim.save(lane)
    stage.sim.bury()


@event(r"cut off (.+)")
def _cut_off(stage: Stage, name: str) -> None:
    for peer in stage.some(name):
        stage.sim.disconnect(peer)


@event(r"back (.+)")
def _back(stage: Stage, name: str) -> None:
    peers = [peer for _, peer in stage.everybody()] if name == "all" else stage.some(name)
    for peer in peers:
        if peer.alive and peer.session is None:
            stage.sim.connect(peer)
            stage.refusal = peer.refused
    stage.sim.bury()


@event(r"kill (.+)")
def _kill(stage: Stage, name: str) -> None:
    for peer in stage.some(name):
        stage.sim.kill(peer)


@event(r"leave (\S+)")
def _leave(stage: Stage, name: str) -> None:
    stage.sim.leave(stage.node(name))


@event(r"restart (\S+)")
def _restart(stage: Stage, name: str) -> None:
    stage.sim.leave(stage.node(name), returns=True)


@event(r"freeze (.+)")
def _freeze(stage: Stage, name: str) -> None:
    for peer in stage.some(name):
        peer.frozen = True


@event(r"late (.+)")
def _late(stage: Stage, name: str) -> None:
    for peer in stage.some(name):
        peer.late = True


@event(r"(?:thaw|catch up) (.+)")
def _catch_up(stage: Stage, name: str) -> None:
    for peer in stage.some(name):
        peer.frozen = peer.late = False
        peer.catch_up()


@event(r"time (\d+)s")
def _time(stage: Stage, seconds: str) -> None:
    stage.sim.wait(int(seconds))


@event(r"rebalance")
def _rebalance(stage: Stage) -> None:
    stage.sim.ask(lambda: stage.sim.cluster.rebalance(stage.sim.now_ms))


@event(r"reset (\S+) to (\d+)")
def _reset(stage: Stage, ref: str, settled: str) -> None:
    sim = stage.sim
    sim.ask(lambda: sim.cluster.reset(partition(ref), Reset(int(settled)), sim.now_ms))


@event(r"(un)?drain (\S+)")
def _drain(stage: Stage, undo: str | None, node_id: str) -> None:
    sim = stage.sim
    sim.ask(lambda: sim.cluster.drain(node_id, sim.now_ms, draining=undo is None))


@event(r"coordinator restarts( with nothing)?")
def _restarts(stage: Stage, with_nothing: str | None) -> None:
    stage.sim.restart(with_nothing=with_nothing is not None)


@event(r"coordinator fails after (\d+) lines")
def _fails(stage: Stage, lines: str) -> None:
    stage.sim.faults.left = int(lines)


@event(r"coordinator dies at the next persist")
def _dies(stage: Stage) -> None:
    stage.sim.dies_after_persist = True


@event(r"subscribe (\S+) (\S+)(?: for (\d+)s)?")
def _subscribe(stage: Stage, gateway_id: str, name: str, seconds: str | None) -> None:
    gateway = stage.gateway(gateway_id)
    gateway.ttl_ms[name] = int(seconds or 0) * 1_000
    gateway.subscribe(name)


@event(r"(\S+) (renews|stops renewing)")
def _renews(stage: Stage, gateway_id: str, how: str) -> None:
    stage.gateway(gateway_id).renews = how == "renews"


@event(r"store has (\S+) at epoch (\d+)")
def _store_has(stage: Stage, ref: str, epoch: str) -> None:
    stage.sim.checkpoints[partition(ref)] = Fence(int(epoch))


@event(r"produces (\S+)")
def _produces(stage: Stage, node_id: str) -> None:
    stage.ingest(node_id).append()


@event(r"log has (\S+) at epoch (\d+)")
def _log_has(stage: Stage, ref: str, epoch: str) -> None:
    stage.sim.log_epochs[partition(ref)] = int(epoch)


@event(r"everything settles")
def _settles(stage: Stage) -> None:
    stage.sim.dies_after_persist = False
    stage.sim.faults.left = None
    for _ in range(SETTLE_S):
        stage.sim.calm(1)
        if not list(stage.sim.unrest()):
            break
