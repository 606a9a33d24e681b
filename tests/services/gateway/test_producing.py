"""A produce request on its way to an ingest node, while nodes come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headgate import errors
from headgate.model.http import Request, Response, json_response
from headgate.services.gateway.forwarding import Forwarder
from headgate.services.gateway.producing import Producing
from tests.virtual_time import run_virtual

ONE, TWO = "http://one", "http://two"
WITH_IDS = b'{"events":[{"event_id":"e1"}],"request_timeout":"5s"}'
WITHOUT = b'{"events":[{"document":{}}],"request_timeout":"5s"}'
WRITTEN = Response(200, b"written")
Answer = Callable[[float], Response]


def gone(_now_s: float) -> Response:
    raise errors.PeerUnreachable("nothing answers")


def silent(url: str) -> Answer:
    def answer(_now_s: float) -> Response:
        raise errors.OutcomeUnknown("no answer", url=url)

    return answer


def stopping(_now_s: float) -> Response:
    return json_response(
        {"error": {"code": "unavailable", "message": "it stops", "details": {}}}, 503
    )


def there(_now_s: float) -> Response:
    return WRITTEN


def from_s(begins_s: float, before: Answer) -> Answer:
    return lambda now_s: WRITTEN if now_s >= begins_s else before(now_s)


async def nobody() -> Any:
    raise AssertionError("its body is told")


class Scripted(Forwarder):
    """Nodes that answer as they are told, by what time it is."""

    def __init__(self, body: bytes, nodes: dict[str, Answer]) -> None:
        self.body = body
        self.nodes = nodes
        self.asked: list[str] = []

    async def body_of(self, request: Request) -> bytes:
        return self.body

    async def pass_on(
        self, request: Request, body: bytes, base_url: str, *, timeout_s: float
    ) -> Response:
        self.asked.append(base_url)
        try:
            return self.nodes[base_url](asyncio.get_running_loop().time())
        except errors.PeerUnreachable:
            raise errors.PeerUnreachable("nothing answers", url=base_url) from None


def produce(
    body: bytes, nodes: dict[str, Answer], *, keyed: bool = True
) -> tuple[Response | errors.HeadgateError, list[str], float]:
    """What came of it, whom it asked, and how long that took."""
    forwarder = Scripted(body, nodes)

    async def scenario() -> tuple[Response | errors.HeadgateError, float]:
        producing = Producing(
            forwarder, ingest_urls=lambda *_: list(nodes), is_keyed=lambda _: keyed
        )
        request = Request("POST", "/v1/topics/t/produce", nobody, params={"name": "t"})
        loop = asyncio.get_running_loop()
        try:
            ended: Response | errors.HeadgateError = await producing.produce(request)
        except errors.HeadgateError as error:
            ended = error
        return ended, loop.time()

    ended, took_s = run_virtual(scenario())
    return ended, forwarder.asked, took_s


@pytest.mark.parametrize("before", [gone, stopping], ids=["gone", "stopping"])
@pytest.mark.parametrize("body", [WITH_IDS, WITHOUT], ids=["with ids", "without"])
def test_nodes_that_wrote_nothing_are_asked_again_until_one_is_there(
    before: Answer, body: bytes
) -> None:
    ended, asked, took_s = produce(body, {ONE: before, TWO: from_s(2.5, before)})
    assert (ended, asked[:2]) == (WRITTEN, [ONE, TWO])
    assert 2.5 <= took_s < 3


def test_what_may_be_written_is_sent_again_by_its_ids() -> None:
    ended, _, took_s = produce(WITH_IDS, {ONE: from_s(2.5, silent(ONE))})
    assert (ended, took_s < 3) == (WRITTEN, True)


@pytest.mark.parametrize(
    ("body", "keyed"), [(WITHOUT, True), (WITH_IDS, False)], ids=["without ids", "without keys"]
)
def test_what_could_be_written_twice_is_not_sent_again(body: bytes, keyed: bool) -> None:
    ended, asked, _ = produce(body, {ONE: silent(ONE), TWO: there}, keyed=keyed)
    assert isinstance(ended, errors.OutcomeUnknown)
    assert asked == [ONE]


def test_what_may_be_written_is_never_told_as_not_written() -> None:
    def answer(now_s: float) -> Response:
        return gone(now_s) if now_s > 0.5 else silent(ONE)(now_s)

    ended, _, took_s = produce(WITH_IDS, {ONE: answer})
    assert isinstance(ended, errors.OutcomeUnknown)
    assert 4 < took_s <= 5


@pytest.mark.parametrize(
    ("node", "code"), [(gone, "unreachable"), (stopping, None)], ids=["gone", "stopping"]
)
def test_the_last_word_comes_within_the_requests_time(node: Answer, code: str | None) -> None:
    ended, _, took_s = produce(WITH_IDS, {ONE: node})
    assert 4 < took_s <= 5
    if isinstance(ended, Response):
        assert (ended.status, code) == (503, None)
    else:
        assert ended.code == code


def test_a_request_that_no_node_could_read_is_passed_on_once() -> None:
    ended, asked, took_s = produce(b"not JSON", {ONE: stopping})
    assert isinstance(ended, Response)
    assert (asked, took_s) == ([ONE], 0)
