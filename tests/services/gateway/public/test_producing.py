"""A produce request on its way to an ingest node, while nodes come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headgate import errors
from headgate.decide.links.passes import Called
from headgate.decide.produce.room import Arriving, Room
from headgate.model.http import Request, Response, json_response
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.gateway.public.producing import Producing
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


def unaware(_now_s: float) -> Response:
    error = {"code": "unknown_topic", "message": "there is no topic t", "details": {}}
    return json_response({"error": error}, 404)


def there(_now_s: float) -> Response:
    return WRITTEN


def from_s(begins_s: float, before: Answer) -> Answer:
    return lambda now_s: WRITTEN if now_s >= begins_s else before(now_s)


async def nobody() -> Any:
    raise AssertionError("its body is told")


class Scripted(Forwarder):
    """Nodes that answer as they are told, by what time it is."""

    def __init__(self, body: bytes, nodes: dict[str, Answer]) -> None:
        self.room = Room(1_000, setting="here")
        self.body = body
        self.nodes = nodes
        self.asked: list[str] = []

    async def body_of(self, request: Request, place: Arriving) -> bytes:
        return self.body

    async def pass_on(
        self, request: Request, body: bytes, base_url: str, *, to: Called, timeout_s: float
    ) -> Response:
        self.asked.append(base_url)
        try:
            return self.nodes[base_url](asyncio.get_running_loop().time())
        except errors.PeerUnreachable:
            raise errors.PeerUnreachable("nothing answers", url=base_url) from None


def produce(
    body: bytes, nodes: dict[str, Answer], *, known_until_s: float = 1_000.0
) -> tuple[Response | errors.HeadgateError, list[str], float]:
    """What came of it, whom it asked, and how long that took, at a gateway that knows the topic."""
    forwarder = Scripted(body, nodes)

    async def scenario() -> tuple[Response | errors.HeadgateError, float]:
        loop = asyncio.get_running_loop()
        producing = Producing(
            forwarder,
            ingest_urls=lambda *_: list(nodes),
            knows=lambda name: name == "t" and loop.time() < known_until_s,
        )
        request = Request("POST", "/v1/topics/t/produce", nobody, params={"name": "t"})
        try:
            ended: Response | errors.HeadgateError = await producing.produce(request)
        except errors.HeadgateError as error:
            ended = error
        return ended, loop.time()

    ended, took_s = run_virtual(scenario())
    return ended, forwarder.asked, took_s


@pytest.mark.parametrize("before", [gone, stopping, unaware], ids=["gone", "stopping", "unaware"])
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


def test_what_could_be_written_twice_is_not_sent_again() -> None:
    ended, asked, _ = produce(WITHOUT, {ONE: silent(ONE), TWO: there})
    assert isinstance(ended, errors.OutcomeUnknown)
    assert asked == [ONE]


def test_what_may_be_written_is_never_told_as_not_written() -> None:
    def answer(now_s: float) -> Response:
        return gone(now_s) if now_s > 0.5 else silent(ONE)(now_s)

    ended, _, took_s = produce(WITH_IDS, {ONE: answer})
    assert isinstance(ended, errors.OutcomeUnknown)
    assert 4 < took_s <= 5


@pytest.mark.parametrize(
    ("node", "code"),
    [(gone, "unreachable"), (stopping, None), (unaware, "unavailable")],
    ids=["gone", "stopping", "unaware"],
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


def test_a_node_that_has_not_heard_of_a_topic_does_not_speak_for_the_others() -> None:
    """Nor does the gateway, which may have an older topology than whoever created the topic."""
    ended, asked, took_s = produce(WITHOUT, {ONE: unaware, TWO: there}, known_until_s=0)
    assert (ended, asked, took_s) == (WRITTEN, [ONE, TWO], 0)


@pytest.mark.parametrize("known_until_s", [0.0, 1.0], ids=["never was", "was deleted"])
def test_a_topic_that_nobody_knows_is_said_not_to_be_there_at_once(known_until_s: float) -> None:
    ended, _, took_s = produce(WITHOUT, {ONE: unaware, TWO: unaware}, known_until_s=known_until_s)
    assert isinstance(ended, Response)
    assert ended.status == 404
    assert known_until_s <= took_s < known_until_s + 0.5


@pytest.mark.parametrize("known_until_s", [0.0, 1_000.0], ids=["unknown here", "known here"])
def test_without_word_of_every_node_a_topic_is_not_said_not_to_be_there(
    known_until_s: float,
) -> None:
    ended, _, took_s = produce(WITHOUT, {ONE: gone, TWO: unaware}, known_until_s=known_until_s)
    assert isinstance(ended, errors.PeerUnreachable | errors.NotNow)
    assert 4 < took_s <= 5


@pytest.mark.parametrize("known_until_s", [0.0, 1_000.0], ids=["unknown here", "known here"])
def test_what_may_be_written_is_never_told_to_have_no_topic(known_until_s: float) -> None:
    def answer(now_s: float) -> Response:
        return unaware(now_s) if now_s > 0.5 else silent(ONE)(now_s)

    ended, _, _ = produce(WITH_IDS, {ONE: answer}, known_until_s=known_until_s)
    assert isinstance(ended, errors.OutcomeUnknown)
