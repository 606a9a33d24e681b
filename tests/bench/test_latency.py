"""`bench latency`: its arithmetic, and the browsers that look on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.bench.latency import Runs, result_of
from headgate.bench.onlookers import BROWSERS, Looks, Tell, check, look_on
from headgate.bench.result import Failed
from headgate.bench.worker import worker
from headgate.demo.figures import Histogram
from headgate.demo.scoreboard import Scoreboard
from headgate.demo.summary import Summary, summarize
from headgate.demo.watches import WATCHES
from headgate.model.http import Request, Route, StreamResponse


def run_of(p50_ms: float, p99_ms: float) -> Summary:
    board = Scoreboard(len(WATCHES))
    nothing = summarize(board, WATCHES, windows=0, seconds=1.0, seed=1)
    return replace(
        nothing, p50_ms=p50_ms, p99_ms=p99_ms, sent_p50_ms=2 * p50_ms, sent_p99_ms=2 * p99_ms
    )


def test_a_ratio_below_one_says_that_being_looked_at_costs() -> None:
    bare = Histogram()
    bare.add(0.5)
    runs = Runs(run_of(1.5, 40.0), run_of(1.2, 4.0), run_of(1.0, 3.0), run_of(1.25, 4.0))
    result = result_of(runs, bare, {"cores": 2})
    assert (result.ratios["watched"], result.ratios["watched_p99"]) == (0.8, 0.75)
    assert result.ratios["window_p99"] == 10.0
    assert (result.figures["alone_sent_p50_ms"], result.figures["watched_sent_p50_ms"]) == (
        2.0,
        2.5,
    )


class Overviews:
    """Streams that bring something now and then, for as long as it is let."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.opened = 0

    async def stream(self, _request: Request) -> StreamResponse:
        self.opened += 1
        return StreamResponse(200, {"content-type": "text/event-stream"}, self._chunks())

    async def _chunks(self) -> AsyncIterator[bytes]:
        while not self.over.is_set():
            yield b"event: overview\ndata: {}\n\n"
            await asyncio.sleep(0.01)


async def test_browsers_look_on_to_the_end_or_the_run_says_nothing() -> None:
    overviews, http = Overviews(), HttpServer()
    route = Route("GET", "/v1/overview/stream", overviews.stream)
    port = await http.start(HttpApp([route]), "127.0.0.1", 0)
    try:
        async with asyncio.timeout(60), worker("headgate.bench.onlookers") as eyes:
            await look_on(eyes, f"http://127.0.0.1:{port}")
            assert overviews.opened == BROWSERS
            seen = Looks(0, 0)
            while seen.events < 2 * BROWSERS:
                seen = await eyes.ask(Tell(), Looks)
            await check(eyes)
            overviews.over.set()
            while seen.open:
                seen = await eyes.ask(Tell(), Looks)
            with pytest.raises(Failed, match="only 0 of 10 browsers looked on"):
                await check(eyes)
    finally:
        await http.stop(1.0)
