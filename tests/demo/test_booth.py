"""Where the demo's page looks and asks: over HTTP, for that page and this machine's programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pyreqwest.client import Client, ClientBuilder

from headgate import errors
from headgate.demo.page.booth import Booth
from headgate.demo.page.dares import DARES, Told
from headgate.demo.view import View
from tests.services.gateway.world import SseSubscriber

ADDRESS = "http://127.0.0.1:8780"
VIEW = View(ADDRESS, "producing", 1.0, None, 10, 1.0, 9, 1.0, 1, 0, 0, 0.5, 2.0, 1, 1)
JSON = {"content-type": "application/json"}


class FakeDares:
    """Takes whatever is there, and says what it took."""

    left_out, again = 2, 3

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.told = [Told(1, 0.5, "killed the gateway")]

    def list(self) -> list[Any]:
        return list(DARES)

    def take(self, name: str) -> None:
        if name == "busy":
            raise errors.NotNow("busy is under way")
        self.taken.append(name)


@pytest.fixture
async def booth() -> AsyncIterator[Booth]:
    made = Booth()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with ClientBuilder().no_proxy().build() as made:
        yield made


async def test_before_the_system_is_up_it_says_so(booth: Booth, client: Client) -> None:
    answer = await client.get(f"{booth.url}/state").build().send()
    assert answer.status == 503
    assert "starting" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8780", 202),
        ("http://localhost:8780", 202),
        ("", 202),
        ("http://127.0.0.1:8781", 403),
        ("https://evil.example", 403),
        ("null", 403),
    ],
)
async def test_only_its_own_page_may_hurt(
    booth: Booth, client: Client, origin: str, status: int
) -> None:
    dares: Any = FakeDares()
    booth.begin(ADDRESS, dares)
    headers = {**JSON, "origin": origin} if origin else JSON
    request = client.post(f"{booth.url}/dares/flood").headers(headers).body_text("{}")
    answer = await request.build().send()
    assert answer.status == status
    assert dares.taken == (["flood"] if status == 202 else [])


async def test_a_form_of_any_page_does_nothing(booth: Booth, client: Client) -> None:
    dares: Any = FakeDares()
    booth.begin(ADDRESS, dares)
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        request = client.post(f"{booth.url}/dares/flood").headers({"content-type": kind})
        assert (await request.body_text("a=b").build().send()).status == 415
    assert dares.taken == []


async def test_what_cannot_be_now_is_said(booth: Booth, client: Client) -> None:
    dares: Any = FakeDares()
    booth.begin(ADDRESS, dares)
    answer = (
        await client.post(f"{booth.url}/dares/busy").headers(JSON).body_text("{}").build().send()
    )
    assert answer.status == 503
    assert (await answer.json())["error"]["message"] == "busy is under way"


async def test_whoever_follows_gets_the_newest_state_and_the_next(
    booth: Booth, client: Client
) -> None:
    dares: Any = FakeDares()
    booth.begin(ADDRESS, dares)
    booth.show(VIEW)
    async with (
        client.get(f"{booth.url}/state").streamed_read_buffer_limit(0).build_streamed() as answer
    ):
        assert (answer.get_header("content-type") or "").startswith("text/event-stream")
        stream = SseSubscriber(answer)
        first = (await stream.next())["data"]
        assert first["view"]["produced"] == 10
        assert (first["view"]["skipped"], first["view"]["duplicates"]) == (2, 3)
        assert [one["name"] for one in first["dares"]] == [one.name for one in DARES]
        assert first["told"][0]["text"] == "killed the gateway"
        booth.show(VIEW)
        assert (await stream.next())["data"]["view"]["phase"] == "producing"
