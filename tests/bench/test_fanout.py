"""`bench fanout`: its clients and its baseline for real, and the whole of it in small."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from picows import WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from headgate.bench.fanout import main as fanout
from headgate.bench.fanout.bare import BareFanout, Listen, Listening, Sent
from headgate.bench.fanout.main import (
    Audience,
    Measured,
    Round,
    Size,
    result_of,
    sockets_for,
    split,
)
from headgate.bench.fanout.stage import SPARE_FILES, allow_sockets
from headgate.bench.registry import BENCHMARKS
from headgate.bench.result import Failed
from headgate.bench.worker import Worker, worker


def test_it_is_registered() -> None:
    assert BENCHMARKS["fanout"].name == "fanout"


@pytest.mark.parametrize(
    ("total", "parts", "shares"),
    [
        pytest.param(10, 2, [5, 5], id="even"),
        pytest.param(11, 3, [4, 4, 3], id="uneven"),
        pytest.param(1, 2, [1, 0], id="fewer than parts"),
    ],
)
def test_clients_are_shared_out(total: int, parts: int, shares: list[int]) -> None:
    assert split(total, parts) == shares


def test_ratios_compare_each_round_with_its_neighbour() -> None:
    rounds = [
        Round(Measured(1_000, [20.0, 20.0], 0.02), Measured(1_000, [10.0, 10.0], 0.01)),
        Round(Measured(1_000, [10.0, 30.0], 0.04), Measured(1_000, [16.0, 16.0], 0.01)),
        Round(Measured(1_000, [90.0, 10.0], 0.03), Measured(1_000, [10.0, 10.0], 0.01)),
    ]
    result = result_of({1_000: rounds}, 5.0, {"cores": 2})
    assert result.ratios == {"n1000": 0.5}
    assert result.figures == {
        "n1000_messages_per_s": 50_000.0,
        "n1000_last_p50_ms": 20.0,
        "n1000_last_p99_ms": 90.0,
        "n1000_cpu_us_per_message": 15.0,
        "bare_n1000_messages_per_s": 100_000.0,
        "bare_n1000_last_p50_ms": 10.0,
        "bare_n1000_last_p99_ms": 16.0,
        "bare_n1000_cpu_us_per_message": 5.0,
        "rss_mb_end": 5.0,
    }


def test_who_says_who_they_are_is_compared_with_who_need_not() -> None:
    rounds = [
        Round(Measured(10, [2.0], 0.0), Measured(10, [1.0], 0.0), Measured(10, [took_ms], 0.0))
        for took_ms in (2.0, 2.5, 1.0)
    ]
    result = result_of({10: rounds, 20: [Round(rounds[0].gateway, rounds[0].bare)]}, 5.0, {})
    assert result.ratios == {"n10": 0.5, "n20": 0.5, "secured_n10": 1.0, "secured": 1.0}
    assert result.figures["secured_n10_last_p50_ms"] == 2.0


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits of open files, the present ones last."""
    found = [(1_024, 4_096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, both: found.append(both))
    return found


def test_the_limit_of_open_files_is_raised_as_far_as_needed(limits: list[tuple[int, int]]) -> None:
    allow_sockets(1_000)
    assert limits[-1] == (1_000 + SPARE_FILES, 4_096)
    allow_sockets(500)
    assert len(limits) == 2


@pytest.mark.parametrize(
    ("sizes", "sockets"),
    [
        ((Size(10_000, 1, 1, 1.0),), 10_000),
        ((Size(1_000, 1, 1, 1.0, is_secured=True), Size(10_000, 1, 1, 1.0)), 10_500),
        ((Size(10_000, 1, 1, 1.0, is_secured=True),), 15_000),
    ],
)
def test_a_crowd_has_its_share_of_the_clients_of_all_servers(
    sizes: tuple[Size, ...], sockets: int
) -> None:
    assert sockets_for(sizes) == sockets


def test_a_limit_that_cannot_be_raised_is_said_with_its_remedy(
    limits: list[tuple[int, int]],
) -> None:
    with pytest.raises(Failed, match=r"10512 open files.*allows 4096.*ulimit -Hn 10512"):
        allow_sockets(10_000)
    assert len(limits) == 1


# --- the clients and the bare server -------------------------------------------------------------


@asynccontextmanager
async def crowds(count: int) -> AsyncIterator[list[Worker]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(worker("headgate.bench.fanout.crowd"))
            for _ in range(count)
        ]


def broadcasting(bare: Worker, frame: str, times: int = 1) -> Callable[[], Awaitable[float]]:
    async def send() -> float:
        sent = [await bare.ask(BareFanout(frame), Sent) for _ in range(times)]
        return sent[0].at_s

    return send


async def test_every_client_has_every_frame_also_after_more_have_come() -> None:
    async with worker("headgate.bench.fanout.bare") as bare, crowds(2) as workers:
        audience = Audience((await bare.ask(Listen(), Listening)).url, workers)
        for clients in (5, 12):
            await audience.grow_to(clients)
            assert len(audience.subscriptions) == clients
            for number in range(3):
                took_ms, frame = await audience.one_more(broadcasting(bare, f'"{number} é"'))
                assert took_ms > 0
                assert frame == f'"{number} é"'


async def test_a_frame_that_comes_twice_fails_the_benchmark() -> None:
    async with worker("headgate.bench.fanout.bare") as bare, crowds(1) as workers:
        audience = Audience((await bare.ask(Listen(), Listening)).url, workers)
        await audience.grow_to(3)
        with pytest.raises(Failed, match=r"had it twice|before it was sent"):  # noqa: PT012
            await audience.one_more(broadcasting(bare, "1", times=2))
            # The second copy may have come after the first was counted; it is noticed here.
            await audience.one_more(broadcasting(bare, "2"))


async def test_a_client_that_is_disconnected_fails_the_benchmark() -> None:
    async def send() -> float:
        return time.monotonic()

    async with crowds(1) as workers:
        async with worker("headgate.bench.fanout.bare") as bare:
            audience = Audience((await bare.ask(Listen(), Listening)).url, workers)
            await audience.grow_to(2)
        with pytest.raises(Failed, match="missed an event"):
            await audience.one_more(send)


async def test_a_server_that_refuses_is_quoted() -> None:
    class Refusing(WSListener):
        def on_ws_connected(self, transport: WSTransport) -> None:
            transport.send(WSMsgType.TEXT, b'{"type":"error","error":{"code":"overloaded"}}')
            transport.disconnect()

    def accept(_request: WSUpgradeRequest) -> WSListener:
        return Refusing()

    server = await ws_create_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with crowds(1) as workers:
        with pytest.raises(Failed, match=r"not every client could subscribe.*overloaded"):
            await Audience(f"ws://127.0.0.1:{port}/", workers).grow_to(2)
    server.close()


async def test_a_server_that_is_not_there_is_a_sentence(unused_tcp_port: int) -> None:
    async with crowds(1) as workers:
        with pytest.raises(Failed, match="not every client could subscribe"):
            await Audience(f"ws://127.0.0.1:{unused_tcp_port}/", workers).grow_to(1)


# --- the whole -----------------------------------------------------------------------------------


async def test_a_small_run_measures_gateway_and_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (
        Size(10, rounds=2, events=3, seconds=60.0, is_secured=True),
        Size(30, rounds=99, events=1, seconds=0.0),
    )
    monkeypatch.setattr(fanout, "QUICK", sizes)
    said: list[str] = []
    async with asyncio.timeout(90):
        result = await fanout.run(True, said.append)
    assert set(result.ratios) == {"n10", "n30", "secured_n10", "secured"}
    assert all(ratio > 0 for ratio in result.ratios.values())
    assert result.conditions["n10_events"] == 6
    assert result.conditions["n30_events"] == fanout.ROUNDS_MIN
    assert int(result.conditions["frame_bytes"]) > fanout.DOCUMENT_BYTES
    assert "measuring 30 clients" in said
