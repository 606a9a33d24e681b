"""`headgate top`: on a terminal of its own, and the screen by itself as a person uses it."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import DataTable, Static, TabbedContent

from headgate.cli.views.top import KEPT, Moments, attention, printable, rows
from headgate.cli.views.top_screen import TopScreen
from headgate.decide.console.overview import overview_of
from headgate.errors import NotNow, UnknownTopic
from headgate.model.api import GatewayStatus, LaneStatus, MoveStatus, Status, TopicInfo
from headgate.model.control.reports import LATENCY_BUCKETS_S, Latencies
from headgate.model.overview_api import DoctorSentence, Overview
from tests.cli.command import headgate
from tests.cli.operated import OperatedServer, partition, status, topic
from tests.servers.process import free_port
from tests.waiting import until

SMALL = status(
    topic("flights", partition(0, head=20, lag=3, lag_ms=40_000, rate=12.0), partition(1)),
    topic("ships", *(partition(number) for number in range(1_000))),
    gateways=[GatewayStatus("g-1", 4, 17, 100)],
)


class Shown:
    """The screen, and what it looks at."""

    def __init__(self, now: Status) -> None:
        self.now = now
        self.fails: Exception | None = None
        self.looks = 0
        self.topics: list[str] = []
        self.screen = TopScreen(
            self._all, self._topic, self._overview(), url="http://h", every_s=0.02, clock=self._now
        )
        self.pilot: Pilot[None]

    def _now(self) -> float:
        return float(self.looks)

    def _overview(self) -> Overview:
        return overview_of(self.now, [])

    async def _all(self) -> Overview:
        self.looks += 1
        if self.fails:
            raise self.fails
        return self._overview()

    async def _topic(self, name: str) -> TopicInfo:
        self.topics.append(name)
        for one in self.now.topics:
            if one.name == name:
                return one
        raise UnknownTopic(f"there is no topic {name}")

    async def look(self) -> None:
        """Until a look that began from now on is shown."""
        before = self.looks
        await until(lambda: self.looks > before + 1)
        await self.pilot.pause()

    def said(self, part: str) -> str:
        return str(self.screen.query_one(f"#{part}", Static).content)

    def table(self, name: str) -> list[list[str]]:
        table: DataTable[Any] = self.screen.query_one(f"#{name}", DataTable)
        return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]

    def count(self, name: str) -> int:
        return self.screen.query_one(f"#{name}", DataTable).row_count

    @property
    def tab(self) -> str:
        return self.screen.query_one(TabbedContent).active.removeprefix("tab-")


@asynccontextmanager
async def showing(now: Status = SMALL) -> AsyncIterator[Shown]:
    shown = Shown(now)
    async with shown.screen.run_test(size=(100, 30)) as shown.pilot:
        yield shown


# --- the screen ----------------------------------------------------------------------------------


async def test_it_shows_rates_lag_health_and_what_needs_attention() -> None:
    async with showing() as shown:
        assert "Headgate 0.1.0 at http://h   c-1 leads   healthy" in shown.said("headline")
        assert "in 12/s" in shown.said("figures")
        assert "behind 40.0 s" in shown.said("figures")
        assert "no lane reads" in shown.said("attention")
        flights = ["flights", "healthy", "2", "12.0", "3", "40.0 s", "0"]
        assert shown.table("topics")[0] == flights
        assert shown.table("gateways") == [["g-1", "4", "17", "100", "0", "0", "0"]]
        shown.now = replace(SMALL, gateways=[GatewayStatus("g-1", 4, 0, 300)])
        await shown.look()
        assert shown.table("gateways")[0][:4] == ["g-1", "4", "0", "300"]
        assert "sent …" not in shown.said("figures")


async def test_it_says_what_is_old_and_recovers_by_itself() -> None:
    async with showing() as shown:
        shown.fails = NotNow("the coordinator doesn't answer")
        await shown.look()
        assert "not up to date: the coordinator doesn't answer" in shown.said("headline")
        assert shown.table("topics")[0][0] == "flights"
        shown.fails = None
        await shown.look()
        assert "not up to date" not in shown.said("headline")


async def test_keys_choose_a_table_and_enter_the_partitions_of_a_topic() -> None:
    async with showing() as shown:
        await shown.look()
        assert shown.topics == [], "nobody looks at partitions"
        await shown.pilot.press("down", "enter")
        await until(lambda: shown.count("partitions") == 1_000)
        assert (shown.tab, set(shown.topics)) == ("partitions", {"ships"})
        await shown.pilot.press("5")
        assert shown.tab == "nodes"
        assert shown.table("nodes")[0] == ["c-1", "coordinator", "ready", "0", "-"]


async def test_a_table_keeps_its_cursor_when_rows_come_and_go() -> None:
    async with showing() as shown:
        await shown.pilot.press("down")
        more = [topic("boats", partition(0)), *SMALL.topics]
        shown.now = replace(SMALL, topics=more)
        await shown.look()
        assert [row[0] for row in shown.table("topics")] == ["boats", "flights", "ships"]
        table: DataTable[Any] = shown.screen.query_one("#topics", DataTable)
        assert table.get_row_at(table.cursor_row)[0].plain == "ships"


async def test_a_topic_that_is_deleted_gives_way_to_another() -> None:
    async with showing() as shown:
        await shown.pilot.press("down", "enter")
        await until(lambda: shown.count("partitions") == 1_000)
        shown.now = replace(SMALL, topics=SMALL.topics[:1])
        await until(lambda: shown.count("partitions") == 2)
        shown.now = replace(SMALL, topics=[])
        await until(lambda: shown.count("partitions") == 0)


async def test_lanes_of_two_windows_stand_beside_each_other() -> None:
    """As while a window changes: a lane and its successor have the same number."""
    lanes = [
        LaneStatus("r-1", 0, window, 1, 99, ["flights:0"], 1_200, 600, 599, 2, 3)
        for window in (8, 9)
    ]
    async with showing() as shown:
        shown.now = replace(SMALL, lanes=lanes)
        await until(lambda: shown.count("lanes") == 2)
        assert [row[:2] for row in shown.table("lanes")] == [["r-1 / 0", "8"], ["r-1 / 0", "9"]]


async def test_what_moves_is_said() -> None:
    moves = [MoveStatus("flights", 1, "r-1", "r-2", "starting", 900)]
    async with showing(replace(SMALL, moves=moves)) as shown:
        assert shown.said("under-way") == "1 moving, such as flights:1 r-1 -> r-2"


# --- rows and figures ----------------------------------------------------------------------------


def test_names_and_sentences_give_a_terminal_no_commands() -> None:
    said = DoctorSentence("x\x1b[2J", "bad", "[red]a\u202eb[/]", "do it\n")
    shown = attention([said])
    assert shown.plain.startswith("bad    x\ufffd[2J: [red]a\ufffdb[/]; do it\ufffd")
    assert printable("zürich ✈") == "zürich ✈"


def test_a_thousand_partitions_are_rows() -> None:
    overview = overview_of(SMALL, [])
    assert len(rows("partitions", overview, SMALL.topics[1])) == 1_000
    assert rows("partitions", overview, None) == []


def test_figures_come_from_the_last_seconds_and_begin_anew_with_a_gateway() -> None:
    moments = Moments()
    overview = overview_of(SMALL, [])

    def look(at_s: float, sent: int, fast: int, slow: int) -> None:
        counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        counts[0], counts[10] = fast, slow
        gateways = [GatewayStatus("g-1", 1, 0, sent)]
        routing = Latencies(tuple(counts), 0.0)
        moments.add(replace(overview, gateways=gateways, routing=routing), at_s)

    look(0, 100, 5, 100)
    assert (moments.sent_per_s(), moments.latency_s(0.5)) == (None, None)
    look(10, 600, 105, 100)
    assert moments.sent_per_s() == 50.0
    half = moments.latency_s(0.5)
    assert half is not None, "only what is new counts"
    assert half <= LATENCY_BUCKETS_S[0]
    look(20, 10, 0, 1)
    assert moments.sent_per_s() is None
    assert moments.latency_s(0.5) is not None
    for second in range(2 * KEPT):
        look(30 + second, 0, 0, 0)
    assert len(moments.kept) == KEPT


# --- the command ---------------------------------------------------------------------------------


async def on_a_terminal(
    *command: str, url: str = "", until_shown: str = "", press: bytes = b""
) -> tuple[int, str]:
    """The exit code and all that the terminal got."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    if url:
        environment["HEADGATE_URL"] = url
    process = subprocess.Popen(  # noqa: ASYNC220 - a terminal is no pipe that asyncio knows
        [sys.executable, *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    got = bytearray()

    def read() -> None:
        os.set_blocking(ours, True)
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:
                return  # The other end is closed.
            got.extend(piece)

    reading = asyncio.get_running_loop().run_in_executor(None, read)
    try:
        if until_shown:
            await until(lambda: until_shown.encode() in got, timeout_s=60)
            os.write(ours, press)
        await until(lambda: process.poll() is not None, timeout_s=60)
        await asyncio.wait_for(reading, 20)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return process.returncode, got.decode(errors="replace")


@pytest.mark.parametrize("key", [b"q", b"\x03"])
async def test_it_runs_on_a_terminal_until_it_is_ended(
    operated: OperatedServer, key: bytes
) -> None:
    operated.now = SMALL
    code, got = await on_a_terminal(
        "-m", "headgate", "top", url=operated.url, until_shown="flights", press=key
    )
    assert code == 0
    assert got.rstrip().endswith("\x1b[?1049l") or "\x1b[?1049l" in got, "the terminal is back"


async def test_without_a_terminal_it_says_so(operated: OperatedServer) -> None:
    result = await headgate("top", url=operated.url)
    assert (result.code, result.out) == (2, "")
    sentence = "headgate top needs a terminal; `headgate status` prints what there is"
    assert result.err == f"headgate: {sentence}\n"


WITHOUT_IT = """
import runpy, sys
sys.modules["textual"] = None
sys.argv[1:] = ["top"]
runpy.run_module("headgate", run_name="__main__")
"""


async def test_without_the_extra_it_says_how_to_get_it(operated: OperatedServer) -> None:
    code, got = await on_a_terminal("-c", WITHOUT_IT, url=operated.url)
    assert code == 2
    assert got.count("\n") == 1
    assert "headgate top needs textual: run pip install 'headgate[top]'" in got


async def test_where_nobody_answers_it_is_a_sentence_and_no_screen() -> None:
    free_url = f"http://127.0.0.1:{free_port()}"
    code, got = await on_a_terminal("-m", "headgate", "top", "--url", free_url)
    assert code == 1
    assert "\x1b[?1049h" not in got
    assert f"headgate: nothing answers at {free_url}" in got
