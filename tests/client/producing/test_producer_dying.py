"""What a producer does in the background dies of a mistake: its callers hear of it, and the next
call is served as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.client.producer import Producer
from headgate.client.producing.route import Route
from headgate.client.producing.topic_stream import TopicStream
from headgate.errors import HeadgateError
from headgate.model.api import TopologyAnswer
from headgate.model.control.from_coordinator import PushTopology
from headgate.tasks import deaths
from tests.client.producing.produce_server import ProduceServer, produce_server
from tests.client.producing.test_route import Followed, owners
from tests.decide.produce.test_routing_cache import topology
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[ProduceServer]:
    async with produce_server() as running:
        running.add_topic("flights")
        yield running


def once(method: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of `method` fails."""

    def mistaken(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("a mistake")

    monkeypatch.setattr(kind, method, mistaken)


@pytest.mark.parametrize(
    ("kind", "method", "task"),
    [
        (Route, "learn", "producer route"),
        (TopicStream, "_place", "producer route"),
        (TopicStream, "_take", "producer requests"),
    ],
    ids=["the route", "the places", "the requests"],
)
async def test_whoever_waits_hears_of_it_and_the_next_one_is_written(
    server: ProduceServer,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    method: str,
    task: str,
) -> None:
    async with Producer(server.url) as producer:
        once(method, kind, monkeypatch)
        with pytest.raises(HeadgateError, match="the producer failed: RuntimeError"):
            await asyncio.wait_for(producer.send("flights", {"n": 1}), 30)
        assert deaths.counts() == {task: 1}
        await asyncio.wait_for(producer.send("flights", {"n": 2}), 30)
    assert server.documents("flights") == [{"n": 2}]


async def test_a_topology_that_nobody_follows_any_more_is_followed_anew() -> None:
    async with produce_server() as server:
        server.topology = TopologyAnswer(topology(5, ["a"]), "127.0.0.1:1")
        followed = Followed(server.url)
        session = (await followed.stream()).session
        session.push(PushTopology(None))  # type: ignore[arg-type]
        await until(lambda: deaths.counts() == {"producer following": 1})
        assert not session.connected
        server.topology = TopologyAnswer(topology(6, ["b"]), "127.0.0.1:1")
        followed.route._ask_after_s = 0.0
        followed.route.refresh("t")
        assert (await followed.stream()).session is not session
        await until(lambda: owners(followed.route) == ("http://b",))
        await followed.route.close()
