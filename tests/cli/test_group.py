"""`headgate group`: what it asks for, what it says before, and how it shows the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import pytest

from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.model.api import ConsumerStatus, GroupStatus
from headgate.model.groups_api import (
    GroupInfo,
    GroupList,
    GroupPartition,
    GroupPartitionReset,
    GroupReset,
    GroupTarget,
    ResetGroup,
)
from headgate.model.http import Request, Response, Route, json_response
from tests.cli.command import Ended, headgate

CONSUMER = ConsumerStatus("c-1", "gateway-1", "connected", [0, 1])
STATUS = GroupStatus("flights", "radar", 3, "a == 1", 0, 1, [CONSUMER])
INFO = GroupInfo(
    "flights",
    "radar",
    "a == 1",
    [
        GroupTarget(0, "c-1", "gateway-1", 2),
        GroupTarget(1, "c-1", "gateway-1", 2),
        GroupTarget(2, "", "", 0),
    ],
    [CONSUMER],
    [GroupPartition(0, 5_120, 498, 512, 4_622)],
)


@dataclass
class Served:
    url: str = ""
    asked: list[ResetGroup] = field(default_factory=list)
    planned: tuple[int, int] = (310, 0)

    async def show(self, _request: Request) -> Response:
        return json_response(GroupList([STATUS]))

    async def describe(self, _request: Request) -> Response:
        return json_response(INFO)

    async def reset(self, request: Request) -> Response:
        body = await request.decode(ResetGroup, 1_000)
        self.asked.append(body)
        one = GroupPartitionReset(0, 203, 498, 512, *self.planned)
        return json_response(GroupReset("flights", "radar", [one], body.dry_run))

    async def run(self, *arguments: str) -> Ended:
        return await headgate("group", *arguments, url=self.url)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made, http = Served(), HttpServer()
    one = "/v1/groups/{name}/{group}"
    routes = [
        Route("GET", "/v1/groups", made.show),
        Route("GET", one, made.describe),
        Route("POST", f"{one}/reset", made.reset),
    ]
    port = await http.start(HttpApp(routes), "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{port}"
    try:
        yield made
    finally:
        await http.stop(0.2)


async def test_groups_are_listed_and_described(served: Served) -> None:
    result = await served.run("list")
    assert result.shows("radar flights 3 1 0 1 a == 1")
    result = await served.run("describe", "flights", "radar")
    assert result.shows("radar of flights where a == 1: 3 targets")
    assert result.shows("c-1 gateway-1 0,1")
    assert result.shows("nobody - 2")
    assert result.shows("flights:0 5,120 498 512 4,622")
    result = await served.run("describe", "flights", "radar", "--json")
    assert msgspec.json.decode(result.out, type=GroupInfo) == INFO


async def test_a_reset_says_what_it_means_before_it_is_done(served: Served) -> None:
    result = await served.run("reset", "flights", "radar", "--to", "earliest", "--yes")
    assert result.code == 0
    assert result.err == (
        "up to 310 records will be handed out again; consumers are told to resync\n"
        "flights:0 from 499-513 to 203\n"
    )
    assert result.out == "radar begins at earliest in 1 partitions of flights\n"
    assert served.asked == [ResetGroup("earliest", True), ResetGroup("earliest", False)]


async def test_a_dry_run_changes_nothing(served: Served) -> None:
    served.planned = (0, 14)
    result = await served.run("reset", "flights", "radar", "--to", "latest", "--dry-run")
    assert "up to 14 records will never be handed out" in result.err
    assert served.asked == [ResetGroup("latest", True)]


async def test_nobody_resets_without_being_asked(served: Served) -> None:
    result = await served.run("reset", "flights", "radar", "--to", "latest")
    assert result.code == 2
    assert "can't be undone, and nobody can be asked here: add --yes" in result.err
    assert [one.dry_run for one in served.asked] == [True]
