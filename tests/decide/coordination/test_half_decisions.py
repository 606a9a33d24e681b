"""No decision half-happens: whichever of its lines fails, the state is what it was, and nothing is
asked of anybody.

Every event of every scenario, and of random walks, is first decided on copies of its state that
fail at one line after the other: each line once for each kind of event that leads to it. What is
noted in place instead is named here; a term ends with it (services/coordinator/test_terms.py).
"""

from __future__ import annotations

import inspect
import pickle
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from headgate.decide.coordination import drafts
from headgate.decide.coordination.cluster import NOTED, Cluster
from headgate.decide.coordination.connectors.connecting import Wish
from headgate.decide.coordination.effects import Effect
from headgate.decide.lane.checkpoints import Reset
from headgate.model.access import ApiToken
from headgate.model.control import to_coordinator
from headgate.model.control.to_coordinator import Hello, SessionRole, ToCoordinator
from headgate.model.topology import Move
from tests.decide.coordination import (
    scenario,
    simulation,
    world,
)
from tests.decide.coordination.faults import Fault, Faults
from tests.decide.coordination.groups import test_invariants as test_group_invariants
from tests.decide.coordination.groups.test_invariants import GroupMachine
from tests.decide.coordination.scenario import play
from tests.decide.coordination.stage import Stage
from tests.decide.coordination.test_invariants import CoordinatorMachine
from tests.decide.coordination.test_scenarios import FILES
from tests.decide.coordination.topics import test_repartitioning
from tests.decide.coordination.topics.test_repartitioning import Cutover
from tests.decide.coordination.world import World, ref

IN_PLACE = {*(kind.__name__ for kind in NOTED), "CheckIn", "AckTopology", "a client"}
"""What changes rows of who says it, or the subscriptions."""
ROLES: tuple[SessionRole, ...] = ("ingest", "router", "gateway", "client")

Decision = Callable[[Cluster], list[Effect]]
struck: set[tuple[str, tuple[str, int]]] = set()
"""Which kinds of events have failed where."""
heard: Counter[str] = Counter()
OFTEN = 50
"""Of a kind that came more often than this, every 25th event is looked at."""


class Lines(Faults):
    """Where a decision goes, without a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1_000_000
        self.passed: list[tuple[str, int]] = []

    def _executed(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.passed.append((frame.f_code.co_filename, frame.f_lineno))
        return self._executed


def image(state: Cluster) -> dict[str, str]:
    names = (field.name for field in fields(state))
    return {name: repr(getattr(state, name)) for name in names if name not in drafts.IN_PLACE}


def fails_anywhere(state: Cluster, kind: str, decide: Decision) -> None:
    """Decide on copies of `state`, which fail at one line after the other that hasn't failed yet.

    A copy that is the same afterwards, to the last byte, is good for the next line.
    """
    heard[kind] += 1
    if heard[kind] > OFTEN and heard[kind] % 25:
        return
    blob = pickle.dumps(state)
    decide(
        pickle.loads(blob)
    )  # what is looked up once is looked up now: the next is like all others
    lines = Lines()
    with lines.deciding():
        decide(pickle.loads(blob))
    assert lines.passed, f"{kind} fails nowhere"
    copy, was = None, b""
    for number, where in enumerate(lines.passed, 1):
        if (kind, where) in struck:
            continue
        struck.add((kind, where))
        if copy is None:
            copy = pickle.loads(blob)
            was = pickle.dumps(copy)
        fault = _failed_at(number, copy, decide)
        if pickle.dumps(copy) != was:
            _changed_what_it_may(pickle.loads(blob), copy, kind, fault)
            copy = None


def _failed_at(line: int, state: Cluster, decide: Decision) -> Fault:
    faults = Faults()
    faults.left = line
    try:
        with faults.deciding():
            decide(state)
    except Fault as fault:
        return fault
    raise AssertionError("nothing struck")


def _changed_what_it_may(before: Cluster, after: Cluster, kind: str, fault: Fault) -> None:
    was, now = image(before), image(after)
    changed = [name for name in was if was[name] != now[name]]
    codes = [frame.f_code for frame, _ in traceback.walk_tb(fault.__traceback__)]
    if any((c.co_filename, c.co_name) == (drafts.__file__, "decided") for c in codes):
        assert not changed, f"{kind} failed at {fault}, and left {changed} changed"
    else:
        assert kind in IN_PLACE or not changed, f"{kind} fails in place, {fault}"


class Torn(Cluster):
    """One that fails anywhere before it decides."""

    def _decided(self, kind: str, decide: Decision) -> list[Effect]:
        fails_anywhere(self, kind, decide)
        return decide(self)

    def opened(self, session: int, hello: Hello, now_ms: int) -> list[Effect]:
        kind = "a client" if hello.role == "client" else f"opened {hello.role}"
        return self._decided(kind, lambda state: Cluster.opened(state, session, hello, now_ms))

    def closed(self, session: int, now_ms: int) -> list[Effect]:
        kind = "a client" if session in self.clients else "closed"
        return self._decided(kind, lambda state: Cluster.closed(state, session, now_ms))

    def received(self, session: int, message: ToCoordinator, now_ms: int) -> list[Effect]:
        kind = "a client" if session in self.clients else type(message).__name__
        return self._decided(kind, lambda x: Cluster.received(x, session, message, now_ms))

    def operate_connector(self, wish: Wish) -> list[Effect]:
        kind = f"{type(wish).__name__} connector"
        return self._decided(kind, lambda state: Cluster.operate_connector(state, wish))


def _torn(name: str) -> Callable[..., list[Effect]]:
    decide = getattr(Cluster, name)

    def decided(state: Torn, *args: Any, **kwargs: Any) -> list[Effect]:
        return state._decided(name, lambda copy: decide(copy, *args, **kwargs))

    return decided


for name, method in vars(Cluster).items():
    decides = inspect.isfunction(method) and "list[Effect]" in str(inspect.signature(method))
    if decides and not name.startswith("_") and name not in vars(Torn):
        setattr(Torn, name, _torn(name))


@pytest.fixture(autouse=True)
def torn(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (simulation, test_group_invariants, world):
        monkeypatch.setattr(module, "Cluster", Torn)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_event_of_any_scenario_half_happens(path: Path) -> None:
    play(Stage(), scenario.read(path))


def test_the_scenarios_have_events_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = set[str]()
    this = sys.modules[__name__]
    monkeypatch.setattr(this, "fails_anywhere", lambda _, kind, __: kinds.add(kind))
    for path in FILES:
        play(Stage(), scenario.read(path))
    assert kinds >= {"tick", "fenced", "create_topic", "delete_topic", "reset", "drain", "Goodbye"}
    assert kinds >= {"opened lane", "opened router", "opened gateway", "opened ingest", "closed"}
    wishes = ("Create", "Pause", "Skip", "Reset", "Delete")
    assert kinds >= {f"{wish} connector" for wish in wishes} | {"ConnectorTooLow"}
    assert kinds >= {"Released", "Claimed", "AckTopology", "Recall", "EpochTooLow", "LaneReport"}


@pytest.mark.parametrize("machine", [CoordinatorMachine, GroupMachine])
def test_nor_does_one_of_any_walk(machine: type[RuleBasedStateMachine]) -> None:
    walks = settings(max_examples=12, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(machine, settings=walks)


@pytest.mark.parametrize(
    "story",
    [
        test_repartitioning.test_it_is_final_when_everybody_routes_by_it,
        test_repartitioning.test_a_seal_that_takes_too_long_is_taken_back,
        test_repartitioning.test_a_version_is_forgotten_when_the_log_has_nothing_of_it,
    ],
)
def test_nor_does_one_of_a_repartition(story: Callable[[Cutover], None]) -> None:
    cutover = Cutover()
    cutover.begin()
    story(cutover)
    assert {"repartition", "AckTopology"} <= heard.keys()


def test_nor_does_what_an_operator_wants() -> None:
    cluster = World()
    cluster.join("ingest", "ingest-1")
    coordinator = cluster.cluster
    cluster.apply(coordinator.create_token(ApiToken("ours", "ab" * 32), first=True))
    cluster.apply(coordinator.revoke_token("ours"))
    cluster.create("flights")
    cluster.apply(coordinator.delete_topic("flights"))
    cluster.apply(coordinator.letters_swept(["flights"]))
    cluster.apply(coordinator.restart("ingest-1"))
    assert {"create_token", "revoke_token", "letters_swept", "restart"} <= heard.keys()


def shared(one: object, other: object, where: str) -> Iterator[str]:
    """What can be changed and is the same in both; knows no kind of thing that drafts don't."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        for key in one:
            yield from shared(one[key], other[key], f"{where}[]")
    elif is_dataclass(one) and not one.__dataclass_params__.frozen:  # type: ignore[union-attr]
        for name in (field.name for field in fields(one)):
            if name not in drafts.IN_PLACE:
                yield from shared(getattr(one, name), getattr(other, name), f"{where}.{name}")
    elif not isinstance(one, set):
        hash(one)  # raises for what isn't frozen all the way down
        return
    if one is other:
        yield where


def test_a_copy_shares_nothing_that_changes() -> None:
    world = World()
    for role in ROLES:
        world.join(role, f"{role}-1")
    world.lane(*world.create("flights", 2))
    [gateway] = world.cluster.sessions_of("gateway")
    join = to_coordinator.JoinGroup(topic="flights", group="radar", consumer="c-1", incarnation="1")
    world.say(gateway, join)
    world.cluster.reset(ref("flights"), Reset(1), world.now_ms)
    world.cluster.handoffs.begin(Move(ref("flights", 1), "router-1", "router-2"), 0)
    [lane] = world.cluster.lanes.by_session.values()
    lane.handed_off[ref("flights")] = world.sources("flights")[0]
    draft = drafts.drafted(world.cluster)
    assert image(draft) == image(world.cluster)
    assert list(shared(draft, world.cluster, "state")) == []
    assert draft.registry is world.cluster.registry


def test_what_is_refused_is_no_fault() -> None:
    world = World()
    world.create("flights")
    before = image(world.cluster)
    world.cluster.create_topic("flights", 1, "keyed")
    assert image(world.cluster) == before
