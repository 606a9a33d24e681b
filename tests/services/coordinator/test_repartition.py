"""A topic is repartitioned over HTTP: what is answered, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.client.http import HttpClient
from headgate.errors import HeadgateError, InvalidRequest, NotNow, UnknownTopic
from headgate.model.api import RepartitionPlan, RepartitionTopic, TopicInfo
from tests.services.coordinator.test_service import Served, running


async def prepare(served: Served) -> None:
    term = served.coordinator._leading()
    await term.apply(lambda _: term.cluster.create_topic("flights", 2, "keyed"))


async def ask(served: Served, body: RepartitionTopic, topic: str = "flights") -> RepartitionPlan:
    async with HttpClient(served.coordinator._routes.url) as client:
        return await client.post(f"/v1/topics/{topic}/repartition", body, RepartitionPlan)


async def described(served: Served) -> TopicInfo:
    async with HttpClient(served.coordinator._routes.url) as client:
        return await client.get("/v1/topics/flights", TopicInfo)


async def test_a_dry_run_says_the_same_and_begins_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as served:
        await prepare(served)
        planned = await ask(served, RepartitionTopic(4, dry_run=True))
        assert (await described(served)).repartition is None
        assert await ask(served, RepartitionTopic(4)) == planned
        under_way = (await described(served)).repartition
        assert under_way is not None
        assert (under_way.to, under_way.phase) == (4, "announced")


@pytest.mark.parametrize("dry_run", [False, True], ids=["for real", "dry run"])
async def test_what_cant_be_is_refused_with_a_sentence(tmp_path: Path, dry_run: bool) -> None:
    async with running(tmp_path) as served:
        await prepare(served)

        async def refused(to: int, kind: type[HeadgateError], said: str, name: str) -> None:
            with pytest.raises(kind, match=said):
                await ask(served, RepartitionTopic(to, dry_run), name)

        term = served.coordinator._leading()
        await refused(4, UnknownTopic, "no topic flight", "flight")
        await refused(2, InvalidRequest, "flights has 2 partitions already", "flights")
        await refused(0, InvalidRequest, "a topic has 1 to 1024 partitions", "flights")
        term.cluster.learning.begin(until_ms=2**60)
        await refused(4, NotNow, "the coordinator is learning", "flights")
        await refused(4, NotNow, "the coordinator is learning", "not-learned-yet")
        term.cluster.learning.until_ms = None
        await ask(served, RepartitionTopic(4))
        await refused(8, NotNow, "flights is on its way to 4 partitions", "flights")
