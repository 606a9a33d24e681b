"""A coordinator comes back without anything that it knew, and somebody asks for something new
before a node has told it what there is: it hears of that first, and nothing is forgotten."""

from __future__ import annotations

import asyncio

import msgspec

from headgate.errors import NotNow
from headgate.model.api import TopicList
from headgate.model.stored import StoredState
from tests.sim.cluster import running
from tests.virtual_time import run_virtual

TOPIC, NEWS = "flights", "news"
LEARNT_S = 120.0
AGAIN_S = 0.01


async def created_at_once() -> tuple[int, list[str]]:
    """How often it was refused first, and which topics there are then."""
    refused = 0
    async with running(1) as cluster, asyncio.timeout(LEARNT_S):
        url = cluster.gateways[0].url
        await cluster.create_topic(url, TOPIC, 2)
        await cluster.stop_coordinator()
        cluster.coordination.content = msgspec.json.encode(StoredState())
        await cluster.start_coordinator()
        while True:
            try:
                await cluster.create_topic(url, NEWS, 1)
            except NotNow:
                refused += 1
                await asyncio.sleep(AGAIN_S)
            else:
                break
        async with cluster.http(url) as http:
            listed = await http.get("/v1/topics", TopicList)
    return refused, sorted(topic.name for topic in listed.topics)


def test_what_is_asked_of_a_coordinator_that_has_forgotten_all_waits_for_what_there_was() -> None:
    refused, topics = run_virtual(created_at_once())
    assert topics == [TOPIC, NEWS]
    assert refused
