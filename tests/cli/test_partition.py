"""`headgate partition reset`: says what it will do, asks, and does it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.model.api import ResetAnswer, ResetPartition
from headgate.model.http import Request, Response, Route, json_response
from tests.cli.command import headgate


class Coordinator:
    """Answers every reset from what `plan` says, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.plan = ResetAnswer("flights", 3, 600, 1, 600, 0, resync=False, dry_run=True)
        self.asked: list[ResetPartition] = []

    async def reset(self, request: Request) -> Response:
        body = await request.decode(ResetPartition, 1_000)
        assert request.params == {"name": "flights", "number": "3"}
        self.asked.append(body)
        said = msgspec.structs.replace(self.plan, resync=body.resync, dry_run=body.dry_run)
        return json_response(said)


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    made, http = Coordinator(), HttpServer()
    routes = [Route("POST", "/v1/topics/{name}/partitions/{number}/reset", made.reset)]
    port = await http.start(HttpApp(routes), "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{port}"
    yield made
    await http.stop(1.0)


async def test_it_says_what_comes_again_and_does_it(coordinator: Coordinator) -> None:
    result = await headgate(
        "partition", "reset", "flights:3", "--to", "earliest", "--yes", url=coordinator.url
    )
    assert (result.code, result.out) == (0, "flights:3 is read from 1 on\n")
    assert result.err == (
        "flights:3 goes back from 601 to 1: 600 records will be delivered again, marked as "
        "redeliveries\n"
    )
    assert [one.dry_run for one in coordinator.asked] == [True, False]
    assert {one.to for one in coordinator.asked} == {"earliest"}


@pytest.mark.parametrize("resync", [False, True], ids=["in silence", "with a resync"])
async def test_it_says_what_is_skipped_and_who_hears_of_it(
    coordinator: Coordinator, resync: bool
) -> None:
    coordinator.plan = ResetAnswer("flights", 3, 600, 602, 0, 1, resync=False, dry_run=True)
    flags = ["--resync"] if resync else []
    result = await headgate(
        *("partition", "reset", "flights:3", "--to", "602", "--yes", "--json", *flags),
        url=coordinator.url,
    )
    told = "subscribers are told to resync" if resync else "and nobody is told"
    assert result.err == (f"flights:3 goes on from 601 to 602: 1 record will be skipped, {told}\n")
    assert result.json == {
        "topic": "flights", "partition": 3, "settled": 600, "next_seq": 602, "repeats": 0,
        "skips": 1, "resync": resync, "dry_run": False,
    }  # fmt: skip
    assert {one.to for one in coordinator.asked} == {602}


async def test_where_nobody_can_be_asked_it_does_nothing_without_yes(
    coordinator: Coordinator,
) -> None:
    result = await headgate(
        "partition", "reset", "flights:3", "--to", "latest", url=coordinator.url
    )
    assert result.code == 2
    assert "nobody can be asked here: add --yes" in result.err
    assert [one.dry_run for one in coordinator.asked] == [True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["flights", "--to", "latest"], "TOPIC:P", id="no partition"),
        pytest.param(["flights:x", "--to", "latest"], "TOPIC:P", id="no number"),
        pytest.param(["flights:0", "--to", "-1"], "neither earliest, latest", id="no seq"),
        pytest.param(["flights:0", "--to", "now"], "neither earliest, latest", id="another word"),
        pytest.param(["flights:0"], "--to", id="nowhere"),
    ],
)
async def test_a_mistake_is_one_sentence(arguments: list[str], message: str) -> None:
    result = await headgate("partition", "reset", *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
