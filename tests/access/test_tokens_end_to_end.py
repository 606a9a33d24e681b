"""A coordinator, an ingest node and a gateway that ask everybody who they are: from the first
administrator's token to its revocation, over the public address, by the clients that ship."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import errors
from headgate.adapters.embedded.folder import DataFolder
from headgate.client.credentials import Credentials, Token
from headgate.client.http import HttpClient
from headgate.client.producer import Producer, ProducerOptions
from headgate.config import Config
from headgate.demo.audience import Watchers
from headgate.demo.badges import Badges
from headgate.model.access_api import CreatedToken, CreateToken, Session, TokenList
from headgate.model.api import CreateTopic, Status, TopicInfo, TopicList, TopologyAnswer
from headgate.wiring import roles
from headgate.wiring.access import admin_key

SOON_S = 10.0


@asynccontextmanager
async def cluster(data: Path) -> AsyncIterator[tuple[str, Any]]:
    """Yields the public address, and what stops the coordinator."""
    folder = DataFolder.open(data)
    secured = {"security": {"enabled": True}}
    anywhere = {"coordinator": {"http_port": 0, "router_port": 0, "consumer_port": 0}, **secured}
    coordinator = roles.build_coordinator(Config.model_validate(anywhere), folder)
    http = await coordinator.start()
    control = int(coordinator.client_address.rpartition(":")[2])
    config = Config.model_validate(
        {
            "coordinator": {"http_port": int(http.rpartition(":")[2])},
            "ingest": {"port": 0, "server_port": control},
            "gateway": {"client_port": 0, "server_port": control},
            "public": {"port": 0, "ws_port": 0},
            **secured,
        }
    )
    node, gateway = roles.build_ingest(config, folder), roles.build_gateway(config, folder)
    await node.start()
    await gateway.start()
    try:
        yield gateway.url, coordinator
    finally:
        await gateway.stop()
        await node.stop()
        await coordinator.stop()


def calls(url: str, token: Token | None) -> HttpClient:
    said = None if token is None else Credentials(token)
    return HttpClient(url, patience_s=SOON_S, credentials=said)


async def made(url: str, token: str, name: str, *grants: str, **more: Any) -> str:
    async with calls(url, token) as http:
        answer = await http.post(
            "/v1/tokens", CreateToken(name, list(grants), **more), CreatedToken
        )
    assert answer.about.name == name
    return answer.token


async def known_everywhere(url: str, token: str) -> None:
    """A node hears of a token a moment after it is made."""
    async with calls(url, token) as http:
        await _until_known(http)


async def _until_known(http: HttpClient) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                await http.get("/v1/status", Status)
                return
            except errors.Forbidden:
                return
            except errors.HeadgateError:
                await asyncio.sleep(0.02)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[str, str, Any]]:
    async with cluster(tmp_path / "data") as (url, coordinator):
        left = admin_key(DataFolder.to_read(tmp_path / "data", otherwise=""))
        first = await made(left.url, left.key, "root", "admin", first=True)
        await known_everywhere(url, first)
        yield url, first, coordinator


async def test_from_the_first_administrator_to_the_last_event(
    secured: tuple[str, str, Any], tmp_path: Path
) -> None:
    url, root, coordinator = secured
    async with calls(url, root) as http:
        await http.post("/v1/topics", CreateTopic("flights", 2), TopicInfo)
        await http.post("/v1/topics", CreateTopic("secrets", 1), TopicInfo)
    mine = await made(url, root, "mine", "produce on flights")
    await known_everywhere(url, mine)

    async with calls(url, mine) as http:
        with pytest.raises(errors.Forbidden):
            await http.get("/v1/topics", TopicList)
        known = (await http.get("/v1/topology", TopologyAnswer)).topology
        assert [topic.name for topic in known.topics] == ["flights"]
        assert {owner.ref.topic for owner in known.logs} == {"flights"}
        others = (*known.sources, *known.groups, *known.targets, *known.connectors)
        assert not others
    async with Producer(url, ProducerOptions(deadline_s=SOON_S), token=mine) as producer:
        receipt = await producer.send("flights", {"n": 1}, key="k")
        assert receipt.seq == 1
        with pytest.raises(errors.Forbidden, match="mine is not granted produce on secrets"):
            await producer.send("secrets", {"n": 1}, key="k")

    # What is kept is no secret.
    stored = (tmp_path / "data" / "coordinator.json").read_text()
    assert "mine" in stored
    assert not [token for token in (root, mine) if token in stored]

    # With the coordinator away nodes go on with what they know.
    await coordinator.stop()
    async with Producer(url, ProducerOptions(deadline_s=SOON_S), token=mine) as producer:
        assert (await producer.send("flights", {"n": 2}, key="k")).seq == 2
    async with Producer(url, ProducerOptions(deadline_s=SOON_S), token="hg_wrong") as producer:
        with pytest.raises(errors.Unauthorized):
            await producer.send("flights", {"n": 2}, key="k")


async def test_a_revoked_token_is_nobodys_at_once_and_a_name_is_used_once(
    secured: tuple[str, str, Any],
) -> None:
    url, root, _ = secured
    mine = await made(url, root, "mine", "read:topics")
    await known_everywhere(url, mine)
    with pytest.raises(errors.TokenExists):
        await made(url, root, "mine", "admin")
    async with calls(url, mine) as http:
        assert (await http.get("/v1/topics", TopicList)).topics == []
        async with calls(url, root) as boss:
            await boss.delete("/v1/tokens/mine")
            names = [one.name for one in (await boss.get("/v1/tokens", TokenList)).tokens]
            assert names == ["root"]
        with pytest.raises(errors.Unauthorized):
            await http.get("/v1/topics", TopicList)


async def test_there_is_one_first_administrator(
    secured: tuple[str, str, Any], tmp_path: Path
) -> None:
    left = admin_key(DataFolder.to_read(tmp_path / "data", otherwise=""))
    with pytest.raises(errors.InvalidRequest, match="root is an administrator already"):
        await made(left.url, left.key, "second", "admin", first=True)


async def test_tokens_are_there_again_after_a_restart(tmp_path: Path) -> None:
    async with cluster(tmp_path / "data") as (url, _):
        left = admin_key(DataFolder.to_read(tmp_path / "data", otherwise=""))
        root = await made(left.url, left.key, "root", "admin", first=True)
    async with cluster(tmp_path / "data") as (url, _), calls(url, root) as http:
        await _until_known(http)
        assert (await http.get("/v1/topics", TopicList)).topics == []
        with pytest.raises(errors.Unauthorized):  # the key of a former start
            await made(url, left.key, "other", "admin")


async def test_nobody_follows_the_topology_who_has_to_say_who_they_are(
    secured: tuple[str, str, Any],
) -> None:
    from headgate.client.defaults import load_sessions
    from headgate.model.control.from_coordinator import PushTopology, Refused
    from headgate.model.control.to_coordinator import Hello

    _, _, coordinator = secured
    session = load_sessions()(
        coordinator.client_address, lambda: Hello(role="client", node_id="c", incarnation="1")
    )
    try:
        async with asyncio.timeout(SOON_S):
            async for message in session.messages():
                assert not isinstance(message, PushTopology)
                if isinstance(message, Refused):
                    break
    finally:
        await session.close()


async def test_a_token_is_asked_for_anew_when_it_is_refused(secured: tuple[str, str, Any]) -> None:
    url, root, _ = secured
    asked: list[str] = []

    async def ask() -> str:
        asked.append("again" if asked else "first")
        return root if len(asked) > 1 else "hg_old"

    async with calls(url, ask) as http:
        await http.get("/v1/topics", TopicList)
        await http.get("/v1/topics", TopicList)
    assert asked == ["first", "again"]


async def test_the_demo_hands_out_tokens_again_where_it_never_heard_which(
    secured: tuple[str, str, Any],
) -> None:
    url, root, _ = secured
    async with calls(url, root) as http:
        await http.post("/v1/topics", CreateTopic("flights", 1), TopicInfo)
    grants = Watchers(url, "flights", Badges(url)).grants
    said = set[str]()
    for _ in range(2):  # the second one knows of none
        badges = Badges(url, root)
        for _ in range(2):
            await _handed_out(badges, grants)
            token = await _asked(badges.of("low"))
            said.add(token)
            async with calls(url, token) as http:
                session = await http.get("/v1/session", Session)
            assert session == Session(required=True, may=["subscribe"], name="low")
    assert len(said) == 2


async def _handed_out(badges: Badges, grants: Mapping[str, str]) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                return await badges.hand_out(grants)
            except errors.NotNow:
                await asyncio.sleep(0.02)


async def _asked(token: Token | None) -> str:
    assert token is not None
    return await Credentials(token).current()
