"""`headgate topic` against a server."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from headgate.model.api import Totals
from tests.cli.command import headgate
from tests.client.producing.produce_server import ProduceServer


async def test_a_topic_is_created_described_listed_and_deleted(server: ProduceServer) -> None:
    created = await headgate(
        "topic", "create", "jobs", "--partitions", "3", "--placement", "opportunistic", "--json",
        url=server.url,
    )  # fmt: skip
    assert created.json == {
        "name": "jobs",
        "partitions": 3,
        "placement": "opportunistic",
        "version": 1,
        "details": [],
        "adopted": 0,
        "totals": msgspec.to_builtins(Totals()),
        "repartition": None,
        "given_up": "",
    }
    described = await headgate("topic", "describe", "jobs", url=server.url)
    assert "jobs: 3 partitions, opportunistic, version 1" in described.out
    listed = await headgate("topic", "list", "--json", url=server.url)
    topics = cast("dict[str, Any]", listed.json)["topics"]
    assert [topic["name"] for topic in topics] == ["flights", "jobs"]
    deleted = await headgate("topic", "delete", "jobs", "--yes", url=server.url)
    assert deleted.out == "deleted jobs\n"
    assert list(server.topics) == ["flights"]


async def test_creating_says_what_was_created(server: ProduceServer) -> None:
    result = await headgate("topic", "create", "single", url=server.url)
    assert (result.code, result.out) == (0, "created single: 1 partition, keyed\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["topic", "create", "flights"], "headgate: the topic flights exists already\n"),
        (["topic", "describe", "nope"], "headgate: there is no topic nope\n"),
    ],
    ids=["exists", "unknown"],
)
async def test_the_servers_refusal_is_one_sentence_and_code_2(
    server: ProduceServer, arguments: list[str], sentence: str
) -> None:
    result = await headgate(*arguments, url=server.url)
    assert (result.code, result.out, result.err) == (2, "", sentence)


async def test_a_name_that_no_topic_can_have_is_said_in_a_sentence(server: ProduceServer) -> None:
    result = await headgate("topic", "describe", "a/b", url=server.url)
    assert result.code == 2
    assert result.err.startswith("headgate: 'a/b' can't be a topic: ")


async def test_nothing_is_deleted_where_nobody_can_be_asked(server: ProduceServer) -> None:
    result = await headgate("topic", "delete", "flights", url=server.url)
    assert result.code == 2
    assert result.err.endswith("add --yes\n")
    assert "flights" in server.topics


async def test_a_list_without_topics_says_how_to_make_one(server: ProduceServer) -> None:
    server.topics.clear()
    result = await headgate("topic", "list", url=server.url)
    assert (result.code, result.out) == (0, "")
    assert "headgate topic create" in result.err


async def test_the_option_wins_over_the_environment(
    server: ProduceServer, unused_tcp_port: int
) -> None:
    elsewhere = f"http://127.0.0.1:{unused_tcp_port}"
    result = await headgate("topic", "list", "--url", server.url, url=elsewhere)
    assert "flights" in result.out
