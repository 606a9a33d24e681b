"""What must hold at any moment, looked at ten times a second of virtual time; and whether the sums
that `status` shows at the end are those of the log and the letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headgate.decide.coordination.cluster import Cluster
from headgate.decide.feed.queue import Item
from headgate.lane.run import Lane
from headgate.model.api import Status
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.lanes import LaneSpec
from headgate.model.topology import Topic
from headgate.services.coordinator.service import Coordinator
from headgate.services.gateway.groups.target import Target
from headgate.services.gateway.rights import Rights, Stay
from headgate.services.gateway.service import Gateway
from headgate.services.principals import KnownPrincipals
from tests.sim.oracle import Routing
from tests.sim.scheduler import Process

if TYPE_CHECKING:
    from tests.sim.lanes import RemoteLane
    from tests.sim.world import World

EVERY_S: Final = 0.1
NEWS: Final = 200
"""Looks, in which lanes hear what their coordinator knows while nothing is in its way."""
LATE_S: Final = 1.5
"""A gateway that has the store alone to ask learns so much too late that somebody else has a
target, at most."""
STAYS: Final = 25
"""Looks at a gateway that runs, in which it lets stay whose rights have ended, at most."""
KINDS: Final = {"ingest": "an ingest node", "router": "a router"}


@dataclass
class Cutover:
    """How far a coordinator was with one when it was looked at last."""

    version: int
    since: int = 0
    drained_s: float | None = None
    behind: list[Routing] = field(default_factory=list)


@dataclass
class Overtaken:
    """Since when somebody else has a target, and what had been handed out of it up to `LATE_S`
    later."""

    at_s: float
    handed: dict[int, int]


class Checks:
    """They begin with it, and last as long as the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bounds = world.cluster.config
        self._passed_over: set[tuple[str, str, int]] = set()
        self._cutovers: dict[tuple[Process, str], Cutover] = {}
        self._versions: dict[tuple[Process, str], int] = {}
        """Which one a coordinator had of a topic when it was looked at last."""
        self._overtaken: dict[Target, Overtaken] = {}
        self._outstayed: Counter[Stay] = Counter()
        self._unheard: Counter[tuple[Process, str]] = Counter()
        self.is_calm = False
        """Is everything mended?"""
        self._look()

    def _look(self) -> None:
        self._world.oracle.look_who_is_there()
        for wrong in self._wrong():
            self._world.oracle.violated(wrong)
        self._world.watcher.call_later(EVERY_S, self._look)

    def _wrong(self) -> Iterator[str]:
        for role in self._world.of("gateway"):
            if role.is_ready and isinstance(role.node, Gateway):
                yield from self._of_gateway(role.name, role.node)
        for lane in self._world.cluster.lanes.living:
            if isinstance(lane.lane, Lane):
                yield from self._of_lane(lane, lane.lane)
        if self.is_calm:
            yield from self._heard_by_lanes()
        yield from self._positions()
        for role in self._world.of("coordinator"):
            if isinstance(role.node, Coordinator) and role.node._term is not None:
                self._look_at_lapses(role.name, role.node._term.cluster)
                if role.process is not None:
                    yield from self._cut_over(role.process, role.node._term.cluster)

    def _look_at_lapses(self, leader: str, cluster: Cluster) -> None:
        found = {(leader, name, ms) for name, times in cluster.lapses.items() for ms in times}
        for _, name, _ in sorted(found - self._passed_over):
            self._world.meets(f"{KINDS[name.partition('-')[0]]} is passed over")
        self._passed_over |= found
        if any(gateway.is_missed for gateway in cluster.of_role("gateway")):
            self._world.meets("a gateway is missed")

    def _cut_over(self, leader: Process, cluster: Cluster) -> Iterator[str]:
        """A repartition isn't over before everybody who is there routes by it, or had the time."""
        now_s = leader.time()
        for topic in cluster.topics.values():
            under_way, known = topic.repartition, self._cutovers.pop((leader, topic.name), None)
            before = self._versions.get((leader, topic.name), topic.version)
            self._versions[leader, topic.name] = topic.version
            if under_way is None and before < topic.version and known is None:
                known = self._seen_too_late(topic, leader)
            if under_way is not None and under_way.phase in ("fenced", "draining", "drained"):
                if known is None or known.version != topic.version:
                    known = Cutover(topic.version)
                if under_way.phase == "drained" and known.drained_s is None:
                    known.drained_s = now_s
                known.behind = [
                    one
                    for one in self._world.oracle.routing.get(leader, ())
                    if one.is_behind(topic.name, under_way.since)
                ]
                known.since = under_way.since
                self._cutovers[leader, topic.name] = known
            elif known is not None and under_way is None and known.version == topic.version:
                if known.behind:
                    self._world.meets("a topic is cut over while somebody routes by its past")
                yield from self._too_early(topic.name, known, leader)

    def _seen_too_late(self, topic: Topic, leader: Process) -> Cutover:
        """One that nobody looked at while it was under way, which is what it was for everybody who
        has been there since."""
        since = self._world.phases.fenced.get((topic.name, topic.version), 0)
        there = self._world.oracle.routing.get(leader, ())
        behind = [
            one
            for one in there
            if one.is_behind(topic.name, since) and one.since_s < leader.time() - 2 * EVERY_S
        ]
        return Cutover(topic.version, since, behind=behind)

    def _too_early(self, topic: str, known: Cutover, leader: Process) -> Iterator[str]:
        timing, now_s = self._bounds.coordinator, leader.time()
        waited_s = 0.0 if known.drained_s is None else now_s - known.drained_s
        if waited_s > timing.adoption_timeout - 2 * EVERY_S:
            return
        there = self._world.oracle.routing.get(leader, ())
        for one in known.behind:
            is_there = one in there and now_s - one.heard_s < timing.timeout / 2
            if is_there and one.is_behind(topic, known.since):
                yield f"{topic} is cut over {waited_s:.1f} s after it drained, without {one.name}"

    def _of_gateway(self, name: str, gateway: Gateway) -> Iterator[str]:
        subscriptions, most = gateway._subscriptions, self._bounds.gateway.subscriber_queue
        for one in subscriptions:
            waiting = one.feed._queue._items
            if len(waiting) <= most:
                continue
            records = sum(isinstance(item, Item) for item in waiting)
            if records > most:
                yield f"{records} wait for {one.id} at {name}, where {most} may"
        takes_us = sum(one.subscription.charge_us for one in subscriptions if not one.feed._held)
        if takes_us > self._bounds.subscriptions.max_cost_per_gateway * 1_000_000:
            yield f"the filters at {name} may take {takes_us} µs for a document"
        yield from self._of_targets(name, gateway)
        if gateway._rights is not None and gateway._principals is not None:
            yield from self._of_rights(name, gateway._rights, gateway._principals)

    def _of_rights(self, name: str, rights: Rights, principals: KnownPrincipals) -> Iterator[str]:
        """Nobody stays for long whose token has expired, or was revoked as far as is known there.
        What an administrator says is told to nobody."""
        process = self._world.roles[name].process
        known = {token.digest for token in principals.told[0]}
        now_ms = self._world.cluster.machines[name][0].wall_ms()
        for stay in rights if process is not None and process.state == "running" else ():
            who = stay.principal
            is_revoked = who.kind == "token" and who.credential not in known
            if not is_revoked and not 0 < who.expires_ms <= now_ms:
                self._outstayed.pop(stay, None)
                continue
            self._outstayed[stay] += 1
            self._world.meets("a connection outlives its token")
            if self._outstayed[stay] > STAYS:
                yield f"{who.name} stays at {name}, with {who} of {known}"

    def _of_targets(self, name: str, gateway: Gateway) -> Iterator[str]:
        """Nobody goes on for long with a target that somebody else has."""
        now_s = self._world.scheduler.now_s
        for consumer in gateway._consumers._table.values():
            for target in consumer.targets():
                handed = dict(target._hand._last)
                known = self._overtaken.get(target)
                if known is None and self._is_overtaken(target):
                    self._overtaken[target] = Overtaken(now_s, handed)
                    self._world.meets("a target is somebody else's before its gateway knows")
                elif known is not None and now_s - known.at_s < LATE_S:
                    known.handed = handed
                elif known is not None and handed != known.handed:
                    yield f"{name} hands out of {target.owner.ref}, which somebody else has"

    def _is_overtaken(self, target: Target) -> bool:
        refs = [target._group.position_ref(target.number, number) for number in target._claimed]
        positions = self._world.cluster.positions
        return any(ref in positions and positions[ref].epoch > target.owner.epoch for ref in refs)

    def _of_lane(self, where: RemoteLane, lane: Lane) -> Iterator[str]:
        name, most = where.process.name, self._bounds.routing.backpressure.queue_size
        for gateway_id, pipeline in lane._dispatcher._pipelines.items():
            if pipeline.waiting > most:
                yield f"{pipeline.waiting} wait at {name} for {gateway_id}, where {most} may"
            outbound = pipeline._outbound
            for _, one in (*outbound._backlog._waiting, *outbound._backlog._in_flight):
                if not one.redelivery and one.seq <= self._settled(where.spec, one):
                    yield f"{_place(one)} waits at {name} for {gateway_id}, and is settled"

    def _heard_by_lanes(self) -> Iterator[str]:
        """They send to the processes that are there."""
        gateways = [role for role in self._world.of("gateway") if role.is_ready]
        there = {
            role.name: role.node._options.incarnation
            for role in gateways
            if isinstance(role.node, Gateway)
        }
        known = {
            one.process: dict(one.lane.holding.around.incarnations)
            for one in self._world.cluster.lanes.living
            if isinstance(one.lane, Lane)
        }
        yield from self._unheard_of(known, there)

    def _unheard_of(
        self, known: Mapping[Process, Mapping[str, str]], there: Mapping[str, str]
    ) -> Iterator[str]:
        wrong = [
            (lane, name)
            for lane, processes in known.items()
            for name, process in processes.items()
            if process != there.get(name, process)
        ]
        self._unheard = Counter({one: self._unheard[one] + 1 for one in wrong})
        for (lane, name), looks in self._unheard.items():
            if looks > NEWS:
                yield f"{lane.name} sends to a process of {name} that isn't there any more"

    def _settled(self, spec: LaneSpec, one: Delivery) -> int:
        """What this lane has saved; 0 when somebody newer has the partition."""
        held = self._world.cluster.positions.get(PartitionRef(one.topic, one.partition))
        mine = Fence(one.epoch, spec.window, spec.attempt)
        return held.settled if held is not None and held.fence == mine else 0

    def _positions(self) -> Iterator[str]:
        log = self._world.cluster.log
        for ref, held in self._world.cluster.positions.items():
            if ref in log.partitions and held.settled > (head := log.partitions[ref].state.head):
                yield f"{ref} is settled up to {held.settled}, and ends at {head}"


def _place(one: Delivery) -> str:
    return f"{one.topic}:{one.partition}:{one.seq}"


def wrong_sums(world: World, shown: Status) -> str:
    """Empty where `shown` is what there is, and everything is settled."""
    totals, cluster = shown.totals, world.cluster
    # Partitions that only a deleted topic of that name had are nobody's.
    most = {topic.name: world.phases.most.get(topic.name, 0) for topic in shown.topics}
    logs = cluster.log.partitions.items()
    there = [one for ref, one in logs if ref.partition < most.get(ref.topic, 0)]
    appended = sum(one.state.head for one in there)
    if totals.appended != appended:
        return f"status counts {totals.appended} records, and the log has {appended}"
    if totals.settled != appended or totals.waiting:
        return f"of {appended} records {totals.settled} are settled, {totals.waiting} wait"
    states = [one.state for one in cluster.letters.letters.values()]
    letters = {state: states.count(state) for state in ("parked", "dead")}
    shown_letters = {
        "parked": sum(one.parked for one in shown.letters),
        "dead": sum(one.dead for one in shown.letters),
    }
    if shown_letters != letters:
        return f"status counts {shown_letters}, and there are {letters}"
    if totals.uncounted:
        return f"nobody knows what became of {totals.uncounted} records"
    if totals.repeated and not world.met["a position is put back"]:
        return f"{totals.repeated} were settled twice, and nobody asked for that"
    return ""
