"""`bench pipeline`: its events, its producers and subscribers for real, and what it concludes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from headgate.bench.pipeline.crowd import Count, Crowd, Subscribe
from headgate.bench.pipeline.events import (
    DOCUMENTS,
    SUBSCRIPTIONS,
    TOPIC,
    matching,
    produce_body,
    reports,
    where,
)
from headgate.bench.pipeline.flow import Lag, Sample, ends_of, lag_of
from headgate.bench.pipeline.load import Produce, Produced, produce
from headgate.bench.pipeline.main import Drained, Pass, Sustained, result_of
from headgate.bench.registry import BENCHMARKS
from headgate.bench.result import Failed
from headgate.decide.matching.index import MatchIndex
from headgate.model.api import ErrorBody, ProduceAnswer, ProduceRequest, ProduceResult
from headgate.model.event import Record
from headgate.model.subscription import Subscription
from tests.waiting import until

NAMES_OF_THE_ISSUE = {
    "figures": {"events_per_s", "sustained_events_per_s"},
    "ratios": {"over_noop"},
}


def test_it_is_registered() -> None:
    assert BENCHMARKS["pipeline"].name == "pipeline"


# --- what it concludes ---------------------------------------------------------------------------


def test_the_result_has_the_issues_names_and_is_flat_numbers() -> None:
    noops = [Pass(100_000.0, 9.0), Pass(200_000.0, 8.0)]
    result = result_of(
        Drained(Pass(150_000.0, 10.0), noops),
        Sustained(events=204_000, seconds=20.0, delivered=20_400, late_ms=5.0, lag=Lag(9.6, 8, 12)),
        {"cores": 2},
    )
    decoded = msgspec.json.decode(msgspec.json.encode(result))
    for part, names in NAMES_OF_THE_ISSUE.items():
        assert names <= set(decoded[part])
        assert all(isinstance(value, int | float) for value in decoded[part].values())
    assert decoded["figures"]["events_per_s"] == 150_000
    assert decoded["figures"]["sustained_events_per_s"] == 10_200
    assert decoded["figures"]["sustained_lag_first"] == 10


def test_the_lanes_are_compared_with_the_fastest_baseline() -> None:
    drained = Drained(Pass(100.0, 20.0), [Pass(50.0, 9.0), Pass(200.0, 10.0), Pass(150.0, 8.0)])
    result = result_of(drained, Sustained(10, 1.0, 1, 0.0, Lag(0, 0, 0)), {})
    assert result.ratios == {"over_noop": 0.5, "over_noop_cpu": 0.5}


def test_a_backlog_that_was_gone_at_once_is_no_measurement() -> None:
    assert ends_of([Sample(1.0, 10), Sample(2.0, 99)]) == (Sample(1.0, 10), Sample(2.0, 99))
    with pytest.raises(Failed, match="too small"):
        ends_of([Sample(1.0, 100)])


@pytest.mark.parametrize(
    ("lags", "expected"),
    [
        pytest.param([5, 5, 5, 5, 5, 5], Lag(5.0, 5.0, 5), id="flat"),
        pytest.param([1, 3, 10, 20, 30, 50], Lag(2.0, 40.0, 50), id="growing"),
        pytest.param([7], Lag(7.0, 7.0, 7), id="one sample"),
        pytest.param([], Lag(0.0, 0.0, 0), id="none"),
    ],
)
def test_the_lag_of_the_first_third_is_told_from_that_of_the_last(
    lags: list[int], expected: Lag
) -> None:
    samples = [Sample(float(number), 100, 100 + lag) for number, lag in enumerate(lags)]
    assert lag_of(samples) == expected


def test_positions_that_overtake_an_older_head_are_no_lag() -> None:
    assert Sample(0.0, settled=10, head=9).lag == 0


# --- its events ----------------------------------------------------------------------------------


def test_every_tenth_event_matches_exactly_one_subscription_and_all_get_some() -> None:
    index = MatchIndex.of(
        Subscription(str(number), "gateway", TOPIC, where(number))
        for number in range(SUBSCRIPTIONS)
    )
    hits: list[str] = []
    for number, report in enumerate(reports()):
        document = msgspec.to_builtins(report)
        record = Record(TOPIC, 0, number + 1, 1, "", None, "", "insert", b"", None, None, 0)
        found = index.match(record, document).by_gateway.get("gateway", ())
        assert len(found) == (number % 10 == 0)
        hits += found
    assert len(set(hits)) == len(hits) == SUBSCRIPTIONS


@pytest.mark.parametrize(
    ("first", "count"), [(0, 0), (0, 1), (1, 9), (1, 10), (9, 2), (300_000, 204_000), (7, 1_234)]
)
def test_the_number_of_matches_is_known_beforehand(first: int, count: int) -> None:
    assert matching(first, count) == sum(number % 10 == 0 for number in range(first, first + count))


def test_a_request_has_numbered_events_with_their_aircraft_as_key() -> None:
    first = DOCUMENTS - 1
    request = msgspec.json.decode(produce_body(first, 3), type=ProduceRequest)
    assert [event.event_id for event in request.events] == [f"{first + n:012}" for n in range(3)]
    decoded = [msgspec.json.decode(event.document) for event in request.events]
    assert decoded == [msgspec.to_builtins(reports()[number]) for number in (first, 0, 1)]
    assert [event.key for event in request.events] == [one["icao"] for one in decoded]


# --- its producers -------------------------------------------------------------------------------


REFUSED = ErrorBody("unavailable", "not now")


class IngestNode(asyncio.Protocol):
    """Acknowledges what it gets; from the request `fails_at` on it leaves the last event out."""

    requests: list[ProduceRequest]
    fails_at: int | None
    open: set[IngestNode]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""
        self.open.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self.open.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        if len(body) < int(head.rpartition(b"content-length: ")[2]):
            return
        self._received = b""
        request = msgspec.json.decode(body, type=ProduceRequest)
        self.requests.append(request)
        results = [ProduceResult(event.event_id or "", 0, 1) for event in request.events]
        if self.fails_at is not None and len(self.requests) > self.fails_at:
            results[-1] = ProduceResult(request.events[-1].event_id or "", error=REFUSED)
        answer = msgspec.json.encode(ProduceAnswer(results))
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(answer)}\r\n\r\n".encode()
        self._transport.write(head + answer)


async def produced(order: Produce, *, fails_at: int | None = None) -> tuple[Produced, list[str]]:
    """What comes of an order, and the ids that the ingest node got."""
    got: list[ProduceRequest] = []
    still_open: set[IngestNode] = set()
    node = type("Node", (IngestNode,), {"requests": got, "fails_at": fails_at, "open": still_open})
    server = await asyncio.get_running_loop().create_server(node, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        url = f"http://127.0.0.1:{port}"
        answer = await produce(msgspec.structs.replace(order, url=url))
        await until(lambda: not still_open)
    return answer, [event.event_id or "" for request in got for event in request.events]


async def test_producers_send_every_event_once() -> None:
    order = Produce("", first=5, count=1_030, per_request=100, connections=4)
    answer, ids = await produced(order)
    assert answer.fault == ""
    assert sorted(ids) == [f"{number:012}" for number in range(5, 1_035)]


async def test_producers_keep_their_rate() -> None:
    order = Produce("", first=0, count=300, per_request=10, connections=2, per_s=2_000.0)
    answer, ids = await produced(order)
    assert len(ids) == 300
    assert answer.seconds >= 290 / 2_000


async def test_an_event_that_is_not_acknowledged_is_a_fault() -> None:
    order = Produce("", first=0, count=1_000, per_request=100, connections=2)
    answer, _ = await produced(order, fails_at=3)
    assert answer.fault == "an event was not acknowledged"


async def test_producers_that_nobody_answers_say_so() -> None:
    answer = await produce(Produce("http://127.0.0.1:1", 0, 1, per_request=1, connections=1))
    assert answer.fault


# --- its subscribers -----------------------------------------------------------------------------


class Gateway(WSListener):
    """Answers each subscription with `subscribed`, and with whatever the test wants to be next."""

    def __init__(self, then: bytes) -> None:
        super().__init__()
        self._then = then

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            transport.send(WSMsgType.TEXT, b'{"type":"subscribed"}')
            if self._then:
                transport.send(WSMsgType.TEXT, self._then)


@asynccontextmanager
async def gateway(then: bytes) -> AsyncIterator[str]:
    def accept(_request: WSUpgradeRequest) -> WSListener:
        return Gateway(then)

    server = await ws_create_server(accept, "127.0.0.1", 0)
    async with server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def subscribed(then: bytes, count: Count) -> tuple[int, str]:
    crowd = Crowd()
    async with gateway(then) as url:
        await crowd.subscribe(Subscribe(url, connections=2, per_connection=3, timeout_s=10.0))
        counted = await crowd.counted(count)
        await crowd.close()
    return counted.events, counted.fault


async def test_subscribers_count_the_events_of_all_their_connections() -> None:
    assert await subscribed(b'{"type":"event","seq":1}', Count(6, 10.0)) == (6, "")


@pytest.mark.parametrize(
    "message",
    [b'{"type":"resync"}', b'{"type":"error","error":{}}'],
    ids=["something was dropped", "a subscription ended"],
)
async def test_anything_but_an_event_is_a_fault(message: bytes) -> None:
    events, fault = await subscribed(message, Count(1, 10.0))
    assert events == 0
    assert message.decode() in fault


async def test_a_count_that_is_not_reached_ends_after_its_time() -> None:
    assert await subscribed(b"", Count(1, 0.01)) == (0, "")
