"""`headgate node` against a server: listing, draining, waiting."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from headgate.errors import NotNow
from headgate.model.api import MoveStatus, Status
from tests.cli.command import headgate
from tests.cli.operated import OperatedServer, partition, status, topic


def owned_by(*routers: str, draining: str = "r-1", **fields: object) -> Status:
    details = [partition(number, router=router) for number, router in enumerate(routers)]
    made = status(topic("flights", *details), **fields)
    nodes = [
        msgspec.structs.replace(node, state="draining") if node.id == draining else node
        for node in made.nodes
    ]
    return msgspec.structs.replace(made, nodes=nodes)


def moving(*partitions: int) -> list[MoveStatus]:
    return [MoveStatus("flights", number, "r-1", "r-2", "releasing") for number in partitions]


@pytest.fixture
def draining(operated: OperatedServer) -> OperatedServer:
    """A server where draining r-1 begins to move its two partitions."""
    operated.now = owned_by("r-1", "r-1", draining="")

    def begin() -> None:
        operated.now = owned_by("r-1", "r-1", moves=moving(0, 1))

    operated.on_change = begin
    return operated


async def test_nodes_are_listed(operated: OperatedServer) -> None:
    operated.now = owned_by("r-1", "r-2")
    result = await headgate("node", "list", url=operated.url)
    assert result.shows("router r-1 draining 1 - 0 ms -")
    as_json = await headgate("node", "list", "--json", url=operated.url)
    nodes = cast("dict[str, Any]", as_json.json)["nodes"]
    assert [(node["id"], node["state"], node["partitions"]) for node in nodes[3:]] == [
        ("r-1", "draining", 1),
        ("r-2", "ready", 1),
    ]


async def test_draining_says_what_goes_where(draining: OperatedServer) -> None:
    result = await headgate("node", "drain", "r-1", url=draining.url)
    assert result.code == 0
    assert result.shows("source r-1 -> r-2 2 flights:0-1")
    assert result.err == "r-1 is draining: it gives away 2 partitions\n"
    assert draining.calls == ["POST r-1"]


async def test_draining_in_json_names_the_node_and_the_moves(draining: OperatedServer) -> None:
    result = await headgate("node", "drain", "r-1", "--json", url=draining.url)
    found = cast("dict[str, Any]", result.json)
    assert found["node"]["state"] == "draining"
    assert found["moves"][0] == {
        "kind": "source",
        "topic": "flights",
        "partition": 0,
        "from": "r-1",
        "to": "r-2",
    }


async def test_waiting_ends_when_the_node_owns_nothing(draining: OperatedServer) -> None:
    begin = draining.on_change

    def begin_and_go_on() -> None:
        begin()
        draining.then = [
            draining.now,
            owned_by("r-2", "r-1", moves=moving(1)),
            NotNow("the coordinator is away"),
            owned_by("r-2", "r-2"),
        ]

    draining.on_change = begin_and_go_on
    result = await headgate("node", "drain", "r-1", "--wait", url=draining.url)
    assert result.code == 0, result.err
    assert result.err.splitlines() == [
        "r-1 is draining: it gives away 2 partitions",
        "moved 1 of 2 partitions",
        "moved 2 of 2 partitions",
        "r-1 owns nothing any more and can be stopped",
    ]


async def test_waiting_too_long_says_how_many_are_left(draining: OperatedServer) -> None:
    result = await headgate("node", "drain", "r-1", "--wait", "--timeout", "10ms", url=draining.url)
    assert result.code == 1
    assert result.err.splitlines()[-1] == (
        "headgate: 2 partitions still to move after 0.01 s: see `headgate status`, or wait longer "
        "with --timeout"
    )


async def test_waiting_ends_when_somebody_else_ends_the_draining(draining: OperatedServer) -> None:
    draining.on_change = lambda: setattr(draining, "now", owned_by("r-1", "r-1", draining=""))
    result = await headgate("node", "drain", "r-1", "--wait", url=draining.url)
    assert result.code == 1
    assert "isn't draining any more" in result.err


async def test_a_learning_coordinator_is_waited_for(draining: OperatedServer) -> None:
    forgetful = owned_by(draining="", learning=True)

    def learn() -> None:
        draining.now = forgetful
        draining.then = [forgetful, forgetful, owned_by("r-2", "r-2")]

    draining.on_change = learn
    result = await headgate("node", "drain", "r-1", "--wait", url=draining.url)
    assert result.code == 0, result.err
    assert "nothing moves while the coordinator learns" in result.err
    assert draining.then == []


async def test_the_draining_is_ended(draining: OperatedServer) -> None:
    draining.now = owned_by("r-2", "r-2")
    draining.on_change = lambda: setattr(draining, "now", owned_by("r-1", "r-2", draining=""))
    result = await headgate("node", "drain", "r-1", "--cancel", url=draining.url)
    assert (result.code, result.err) == (0, "r-1 is not draining; it gets 1 partition\n")
    assert draining.calls == ["DELETE r-1"]


async def test_a_node_that_owns_nothing_is_drained_at_once(operated: OperatedServer) -> None:
    result = await headgate("node", "drain", "r-2", "--wait", url=operated.url)
    assert result.code == 0
    assert result.err.splitlines()[0] == "r-2 is draining, owns nothing and can be stopped"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nope"], "there is no node nope: see `headgate node list`"),
        (["a/b"], "there is no node 'a/b': see `headgate node list`"),
        (["c-1"], "c-1 is the coordinator, which owns no partitions"),
        (["r-1", "--cancel", "--wait"], "--wait is for draining: leave it out with --cancel"),
        (["r-1", "--wait", "--timeout", "10"], "'10' is not a duration"),
    ],
    ids=["unknown", "impossible", "coordinator", "cancel and wait", "timeout"],
)
async def test_a_callers_mistake_is_one_sentence_and_code_2(
    operated: OperatedServer, arguments: list[str], sentence: str
) -> None:
    result = await headgate("node", "drain", *arguments, url=operated.url)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"headgate: {sentence}")
    assert result.err.count("\n") == 1
    assert operated.calls == []


def test_the_status_of_a_draining_node_survives_json() -> None:
    made = owned_by("r-1")
    assert msgspec.json.decode(msgspec.json.encode(made), type=Status) == made


def as_process(number: int, **fields: object) -> Status:
    """r-1 in its `number`th life."""
    made = owned_by("r-1", "r-2", draining="")
    nodes = [
        msgspec.structs.replace(node, incarnation=f"life {number}", **fields)
        if node.id == "r-1"
        else node
        for node in made.nodes
    ]
    return msgspec.structs.replace(made, nodes=nodes)


async def test_a_restart_says_what_the_node_keeps(operated: OperatedServer) -> None:
    operated.now = as_process(1)
    result = await headgate("node", "restart", "r-1", url=operated.url)
    assert (result.code, result.err) == (0, "r-1 restarts; it keeps its 1 partition\n")
    assert operated.calls == ["restart r-1"]


async def test_waiting_for_a_restart_ends_with_another_process_that_is_ready(
    operated: OperatedServer,
) -> None:
    operated.now = as_process(1)
    operated.then = [
        as_process(1),
        as_process(1, state="lost"),
        NotNow("the coordinator is away"),
        as_process(2, state="starting"),
        as_process(2),
    ]
    result = await headgate("node", "restart", "r-1", "--wait", url=operated.url)
    assert (result.code, result.err.splitlines()[-1]) == (0, "r-1 is back")
    assert operated.then == []


async def test_a_node_that_does_not_come_back_is_waited_for_within_bounds(
    operated: OperatedServer,
) -> None:
    operated.now = as_process(1)
    result = await headgate("node", "restart", "r-1", "--wait", "--timeout", "1s", url=operated.url)
    assert result.code == 1
    assert "r-1 isn't back after 1 s" in result.err


async def test_the_coordinator_is_not_restarted_by_itself(operated: OperatedServer) -> None:
    result = await headgate("node", "restart", "c-1", url=operated.url)
    assert (result.code, operated.calls) == (2, [])
    assert "c-1 is the coordinator" in result.err
