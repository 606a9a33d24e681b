"""Whatever bytes come, from whomever: each decoder has an error of ours for them, or a value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.control_stream import ServerStream, encode
from headgate.adapters.delivery_wire import encode_lines, read_batch, reply_to
from headgate.adapters.grpc.streamer import ack_of
from headgate.answering import HttpApp
from headgate.config import load_config
from headgate.decide.coordination.topics import topic_rules
from headgate.decide.filter.parser import parse
from headgate.decide.http.routes import RouteTable
from headgate.decide.http.web_pages import WebPages
from headgate.errors import HeadgateError, InvalidRequest
from headgate.model.control.to_coordinator import Hello
from headgate.model.delivery import Batch, DeliveryAnswer, Verdict
from headgate.model.http import Headers, Request, Response, Route
from headgate.services.gateway.subscriptions.requests import question_of
from tests.adapters.transports.stage import batch, delivery
from tests.at_once import at_once

DEEP = 100_000
NESTED = b"[" * DEEP
SEEDS = (
    encode_lines(batch(delivery(1), delivery(2))),
    msgspec.json.encode(batch(delivery(1))),
    encode(Hello(role="gateway", node_id="g", incarnation="1")),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Something that was right once, with some of it changed, cut or repeated."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return bytes(data)


any_bytes = st.one_of(st.binary(max_size=300), mutated())


def whole(found: Batch) -> DeliveryAnswer:
    """A gateway that looks at everything."""
    assert len(found.identities) == len(found.deliveries)
    accepted: Verdict = "accepted"
    return DeliveryAnswer((accepted,) * len(found.deliveries))


@given(any_bytes)
def test_a_batch_that_cant_be_read_is_refused(data: bytes) -> None:
    with suppress(InvalidRequest):
        whole(read_batch(data))


@pytest.mark.parametrize(
    "data",
    [
        NESTED,
        b'{"deliveries":' + NESTED,
        b'{"a":' * DEEP,
        b"[1]\n" + NESTED,
        SEEDS[1].replace(b'{"text"', b'{"a":' + NESTED + b',"text"', 1),
    ],
    ids=["outline", "deliveries", "objects", "lines", "a document"],
)
@pytest.mark.parametrize("answer", [reply_to, ack_of], ids=["NATS", "gRPC"])
def test_a_batch_that_nests_without_end_is_answered(
    answer: Callable[[bytes, Callable[[Batch], DeliveryAnswer]], Coroutine[Any, Any, bytes]],
    data: bytes,
) -> None:
    assert len(at_once(answer(data, whole))) < 1_000


@given(any_bytes)
def test_every_batch_is_answered_over_nats_and_over_grpc(data: bytes) -> None:
    assert at_once(reply_to(data, whole))
    at_once(ack_of(data, whole))


class Said:
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        return self._data

    async def write(self, data: bytes) -> None:
        raise AssertionError


@pytest.mark.parametrize("piece", [b"\x91", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff"])
def test_what_nests_without_end_on_a_control_stream_is_refused(piece: bytes) -> None:
    hello = encode(Hello(role="gateway", node_id="g", incarnation="1"))
    for data in (piece * DEEP, b"\x8f\xa4type\xa6Recall\xa8topology" + piece * DEEP, hello + piece):
        with pytest.raises(InvalidRequest):
            asyncio.run(ServerStream(Said(data)).receive())


@given(any_bytes)
def test_what_is_said_on_a_control_stream_is_a_message_or_refused(data: bytes) -> None:
    with suppress(InvalidRequest):
        asyncio.run(ServerStream(Said(data)).receive())


async def test_a_request_that_nests_without_end_is_the_callers_fault() -> None:
    async def read(asked: Request) -> Response:
        msgspec.json.decode(await asked.body(10 * DEEP), type=dict[str, msgspec.Raw])
        raise AssertionError

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b'{"a":' + NESTED}

    asked = Request("POST", "/v1/topics", receive)
    answer = await HttpApp([Route("POST", "/v1/topics", read)]).answer(asked)
    assert answer.status == 400
    assert isinstance(answer, Response)
    assert b"nests too deeply" in answer.body


@given(st.text(max_size=200))
def test_a_filter_is_one_or_refused(text: str) -> None:
    with suppress(HeadgateError):
        parse(text)


@given(
    st.dictionaries(st.sampled_from(["topic", "where", "from", "id", "v"]), st.text()), st.text()
)
def test_a_position_is_one_or_refused(query: dict[str, str], last: str) -> None:
    with suppress(HeadgateError):
        question_of(query, last)


@given(st.text(max_size=300))
def test_a_query_string_is_one_or_refused(text: str) -> None:
    with suppress(HeadgateError):
        dict(request("/", query=text).query)


@given(text=st.text(max_size=300))
def test_a_configuration_is_one_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file: Path = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with suppress(HeadgateError):
        load_config(config_file=file, environ={})


# --- paths ---------------------------------------------------------------------------------------


def request(path: str, *, query: str = "") -> Request:
    async def nothing() -> dict[str, object]:
        raise AssertionError

    return Request.to("GET", path, query, nothing, Headers())


async def fine(_request: Request) -> Response:
    return Response()


TRICKS = [
    *("..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "a%00.db", "a%2f..%2fb", "%5c..%5c", "."),
    *("...", "a%0d%0aset-cookie:x", "%ff%fe", "a b", "C:", "-rf", "@group%2fx", "~root", ""),
]


@pytest.mark.parametrize("trick", TRICKS)
def test_no_topic_is_called_like_a_way_out_of_its_folder(trick: str) -> None:
    """Whatever a path's segment stands for: no topic can have that name, so no folder has."""
    table = RouteTable([Route("GET", "/v1/topics/{name}", fine)], WebPages())
    try:
        _, found = table.find(request(f"/v1/topics/{trick}"))
    except HeadgateError:
        return
    error = topic_rules.refusal(found.params["name"], 1)
    name = found.params["name"]
    assert error is not None or ("/" not in name and name.strip(".") == name and name.isprintable())


@given(st.text(max_size=40))
def test_a_name_that_is_allowed_stays_in_its_folder(name: str) -> None:
    if topic_rules.refusal(name, 1) is None:
        assert (Path("/data/log") / name).resolve().parent == Path("/data/log")
        assert name.isprintable()
