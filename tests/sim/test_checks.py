"""What is looked at ten times a second finds what is wrong; shown with histories that are made
up."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from headgate.config import Config
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.groups.unacknowledged import InHand
from headgate.model.event import PartitionRef
from headgate.model.topology import FormerVersion, Owner, Repartition, Topic
from headgate.services.gateway.service import Gateway
from tests.sim.checks import LATE_S, NEWS, Checks
from tests.sim.oracle import Oracle, Routing
from tests.sim.phases import Phases
from tests.sim.scheduler import Process

SINCE = 7
SMALL = Topic("planes", 1, "keyed", 1)
GROWN = Topic("planes", 2, "keyed", 2, (3, 0), (FormerVersion(1, (0,), (3,)),), original=1)
TIMING = {"timeout": 4.0, "check_in": 1.0, "grace": 1.0, "adoption_timeout": 10.0}


@dataclass(frozen=True)
class Named:
    name: str


class Told:
    """A world of which only that is there which is looked at."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.oracle = Oracle()
        self.phases = Phases()
        self.positions: dict[PartitionRef, Any] = {}
        self.cluster = SimpleNamespace(
            config=Config.model_validate({"coordinator": TIMING}),
            lanes=SimpleNamespace(living=[]),
            positions=self.positions,
            log=SimpleNamespace(partitions={}),
        )
        self.watcher = SimpleNamespace(call_later=lambda *_: None)
        self.checks = Checks(cast("Any", self))

    @property
    def scheduler(self) -> Told:
        return self

    def time(self) -> float:
        return self.now_s

    def of(self, kind: str) -> list[Any]:
        return []

    def meets(self, what: str) -> None:
        self.oracle.seen[what] += 1

    # --- a repartition ---------------------------------------------------------------------------

    def is_there(self, role: str = "ingest", generation: int = SINCE - 1) -> Routing:
        routing = Routing(role, f"{role}-1", self.now_s, self.now_s, generation, ("planes",))
        self.oracle.routing.setdefault(self, []).append(routing)
        return routing

    def cut_over(self, phase: str = "", topic: Topic = GROWN) -> list[str]:
        under_way = Repartition(2, cast("Any", phase), SINCE) if phase else None
        topic = structs.replace(topic, repartition=under_way)
        cluster = cast("Cluster", SimpleNamespace(topics={topic.name: topic}))
        return list(self.checks._cut_over(cast("Process", self), cluster))


@pytest.mark.parametrize("role", ["ingest", "client"])
def test_no_repartition_is_over_while_somebody_routes_by_the_version_before(role: str) -> None:
    world = Told()
    world.is_there(role)
    for phase in ("fenced", "draining", "drained"):
        assert world.cut_over(phase) == []
        world.now_s += 0.1
    assert world.cut_over() == [f"planes is cut over 0.1 s after it drained, without {role}-1"]
    assert world.cut_over() == [], "it is said once"


def test_one_that_nobody_looked_at_while_it_was_under_way_is_judged_too() -> None:
    world = Told()
    world.is_there()
    world.now_s += 1.0
    assert world.cut_over(topic=SMALL) == []
    fenced = Repartition(2, "fenced", SINCE)
    world.phases.kept([structs.replace(GROWN, repartition=fenced)])
    assert world.cut_over() == ["planes is cut over 0.0 s after it drained, without ingest-1"]


def test_none_is_over_before_it_has_drained() -> None:
    world = Told()
    world.is_there()
    world.cut_over("draining")
    world.now_s += 20.0
    assert world.cut_over() == []  # who wasn't heard of for so long isn't waited for
    world = Told()
    routing = world.is_there()
    world.cut_over("draining")
    routing.heard_s = world.now_s = world.now_s + 20.0
    assert world.cut_over() == ["planes is cut over 0.0 s after it drained, without ingest-1"]


@pytest.mark.parametrize("why", ["it routes by the new one", "it had the time", "it is gone"])
def test_it_may_be_over_without_somebody(why: str) -> None:
    world = Told()
    routing = world.is_there()
    world.cut_over("drained")
    if why == "it routes by the new one":
        routing.generation = SINCE
    elif why == "it had the time":
        routing.heard_s = world.now_s = world.now_s + 10.0
    else:
        world.oracle.routing.clear()
    assert world.cut_over() == []


# --- targets -------------------------------------------------------------------------------------


class HandedOut:
    """Target 3 of a group, with partition 0 of its topic."""

    def __init__(self) -> None:
        self.owner = Owner(PartitionRef("packers", 3), "gateway-1", 5)
        self.number = 3
        self._claimed = {0}
        self._hand = InHand({0: 0}, {0: 0})
        self._group = SimpleNamespace(position_ref=lambda target, number: self.position_ref)

    position_ref = PartitionRef("packers/3", 0)

    def looked_at(self, world: Told) -> list[str]:
        consumer = SimpleNamespace(targets=lambda: [self])
        consumers = SimpleNamespace(_table={"one": consumer})
        gateway = cast("Gateway", SimpleNamespace(_consumers=consumers))
        return list(world.checks._of_targets("gateway-1", gateway))


def test_a_gateway_hands_out_nothing_of_a_target_that_somebody_else_has() -> None:
    world, target = Told(), HandedOut()
    for seq in (1, 2):
        target._hand.hand_out(0, seq)
        assert target.looked_at(world) == [], "it is its own"
        world.now_s += LATE_S
        world.positions[target.position_ref] = SimpleNamespace(epoch=5)
    world.positions[target.position_ref] = SimpleNamespace(epoch=6)
    assert target.looked_at(world) == []
    world.now_s += LATE_S / 2
    target._hand.hand_out(0, 3)
    assert target.looked_at(world) == [], "it may not know yet"
    world.now_s += LATE_S
    assert target.looked_at(world) == []
    target._hand.hand_out(0, 4)
    found = target.looked_at(world)
    assert found == [f"gateway-1 hands out of {target.owner.ref}, which somebody else has"]


def test_a_lane_hears_of_a_gateway_that_is_another_process_by_now() -> None:
    world, lane = Told(), cast("Process", Named("lane-0"))

    def looks(times: int, known: str, there: dict[str, str]) -> list[str]:
        found: list[str] = []
        for _ in range(times):
            found += world.checks._unheard_of({lane: {"gateway-1": known}}, there)
        return found

    assert looks(2 * NEWS, "old", {}) == [], "none is there"
    assert looks(NEWS, "old", {"gateway-1": "new"}) == []
    assert looks(1, "new", {"gateway-1": "new"}) == [], "it has heard"
    assert looks(NEWS, "old", {"gateway-1": "new"}) == []
    wrong = "lane-0 sends to a process of gateway-1 that isn't there any more"
    assert looks(1, "old", {"gateway-1": "new"}) == [wrong]
