"""What the demo prints: it never fails, and the summary says the words that people grep for."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from headgate.demo.scoreboard import Scoreboard
from headgate.demo.screen import BAR_WIDTH, Screen, bar, line, summary_table
from headgate.demo.summary import Summary, format_ms, summarize
from headgate.demo.view import (
    ConsumerView,
    GatewayView,
    Gauges,
    PartitionView,
    RoleView,
    SubscriberView,
    View,
    WindowCount,
)
from headgate.demo.watches import WATCHES
from headgate.model.api import WindowStatus

EMPTY = View(
    address="http://127.0.0.1:1",
    phase="subscribing",
    elapsed_s=0.0,
    total_s=None,
    produced=0,
    produced_per_s=0.0,
    delivered=0,
    delivered_per_s=0.0,
    missing=0,
    lag=0,
    lag_ms=0,
    p50_ms=0.0,
    p99_ms=0.0,
    windows=0,
    window=0,
)
BUSY = replace(
    EMPTY,
    phase="producing",
    elapsed_s=12.3,
    produced=2_460,
    produced_per_s=200.0,
    partitions=tuple(PartitionView(number, 50.0 + number, number, 3) for number in range(4)),
    gateways=(GatewayView("gateway-1", 312.5, 4, 0),),
    subscribers=(SubscriberView("low", 'squawk in ["7500"]', 10, 9, 1.5),),
    roles=(RoleView("ingest", None), RoleView("router", 4_711)),
    trouble="the coordinator [bold]is away[/bold]",
)


def shown(renderable: RenderableType, width: int = 120, height: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [20, 80, 140])
@pytest.mark.parametrize(
    "view",
    [
        EMPTY,
        BUSY,
        replace(BUSY, total_s=30.0),
        replace(BUSY, phase="draining"),
        replace(BUSY, partitions=tuple(PartitionView(n, 0.0, 0, 0) for n in range(1_024))),
        replace(BUSY, produced_per_s=math.inf, p99_ms=math.nan, lag=-3, elapsed_s=-1.0),
        replace(BUSY, partitions=(PartitionView(0, math.nan, 10**12, 10**9),)),
    ],
    ids=["empty", "busy", "with an end", "draining", "many partitions", "odd", "odder"],
)
def test_every_view_can_be_shown(view: View, width: int) -> None:
    assert "demo" in shown(Screen(view), width) or width == 20
    assert "\n" not in line(view)


def test_brackets_in_filters_and_messages_are_not_markup() -> None:
    text = shown(Screen(BUSY))
    assert 'squawk in ["7500"]' in text
    assert "[bold]is away[/bold]" in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_nothing_is_cut_off_on_a_terminal_of_usual_width(width: int) -> None:
    text = shown(Screen(replace(BUSY, p99_ms=1_234.0)), width)
    assert "…" not in text
    assert all(word in text for word in ("flights:3", "gateway-1", "< 1 ms / 1.2 s"))


def test_the_screen_says_which_process_is_which_and_who_is_away() -> None:
    text = shown(Screen(BUSY))
    assert re.search(r"router\s+pid 4711", text)
    assert re.search(r"ingest\s+restarting", text)


@given(value=st.floats(), largest=st.floats())
def test_a_bar_is_never_longer_than_its_width(value: float, largest: float) -> None:
    assert len(bar(value, largest)) <= BAR_WIDTH


@pytest.mark.parametrize(
    ("value", "length"), [(0, 0), (1, 1), (50, 12), (100, 24), (200, 24)], ids=str
)
def test_a_bar_is_as_long_as_its_share(value: float, length: int) -> None:
    assert len(bar(value, 100)) == length


# --- the summary ---------------------------------------------------------------------------------


def summary_of(*, arrivals: list[tuple[int, int]], acknowledged: int = 3) -> Summary:
    """Events 1 to 3 are for the first watch; `arrivals` are (watch, number)."""
    board = Scoreboard(len(WATCHES))
    for number in range(1, 4):
        board.sent(f"e{number}", key="a", number=number, expected={0})
        if number <= acknowledged:
            board.acknowledged(f"e{number}", at_s=1.0)
        else:
            board.not_acknowledged(f"e{number}")
    for watch, number in arrivals:
        board.received(watch, f"e{number}", partition=0, seq=number, at_s=1.02)
    return summarize(board, WATCHES, windows=2, seconds=30.0, seed=1)


ALL = [(0, 1), (0, 2), (0, 3)]


def test_what_was_still_on_its_way_isnt_called_lost() -> None:
    board = Scoreboard(len(WATCHES))
    board.sent("e1", key="a", number=1, expected={0})
    board.acknowledged("e1", at_s=1.0)
    summary = summarize(board, WATCHES, windows=0, seconds=1.0, seed=1, is_lost=False)
    assert not summary.ok
    assert "lost 0," in summary.line()
    assert summary.line().endswith("not delivered yet 1")
    assert "not yet" in shown(summary_table(summary))


def test_it_is_said_what_is_waited_for_at_the_end() -> None:
    view = replace(BUSY, phase="draining", waiting="waiting for what is on its way: 7 (a reason)")
    assert "waiting for what is on its way: 7 (a reason)" in shown(Screen(view))
    assert line(view).endswith("; waiting for what is on its way: 7 (a reason)")


EVERYBODY = tuple(
    RoleView(role, 104_710 + number)
    for number, role in enumerate(("coordinator", "ingest", "gateway", "router"))
)


def test_whoever_is_back_soonest_is_the_first_to_be_killed() -> None:
    assert "kill -9 104712   # the gateway, or any pid above" in shown(
        Screen(replace(BUSY, roles=EVERYBODY))
    )


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_role_and_its_pid_stay_together(width: int) -> None:
    text = shown(Screen(replace(BUSY, roles=EVERYBODY)), width)
    for role in EVERYBODY:
        assert f"● {role.name} pid {role.pid}" in text


def test_while_a_router_starts_again_it_is_said_that_it_takes_and_does_no_harm() -> None:
    view = replace(BUSY, roles=(*EVERYBODY[:3], RoleView("router", None)))
    sentence = "the router starts again: Spark takes 10 to 30 s, and nothing gets lost"
    assert sentence in shown(Screen(view))
    assert "● router restarting" in shown(Screen(view))
    assert line(view).endswith(f"; {sentence}")
    assert sentence not in shown(Screen(replace(view, phase="finished")))
    assert sentence not in shown(Screen(replace(view, roles=EVERYBODY)))


SUBSCRIBERS = tuple(SubscriberView(watch.name, watch.where, 9, 9, 1.5) for watch in WATCHES)
FULL = replace(
    BUSY,
    address="http://127.0.0.1:48213",
    subscribers=SUBSCRIBERS,
    roles=EVERYBODY,
    trouble="",
)


@pytest.mark.parametrize(
    "view",
    [
        FULL,
        replace(FULL, roles=(*EVERYBODY[:3], RoleView("router", None))),
        replace(FULL, trouble="nothing answers at the moment; try again"),
        replace(FULL, partitions=tuple(PartitionView(n, 9.0, 0, 0) for n in range(64))),
    ],
    ids=["well", "a router starts", "trouble", "many partitions"],
)
def test_a_usual_terminal_shows_all_of_it(view: View) -> None:
    """80 by 24: how to end it, what to type, and the last line of the frame."""
    lines = shown(Screen(view), 80, height=24).splitlines()
    assert len(lines) <= 24
    assert "Ctrl-C ends it with a summary" in lines[0]
    assert any("subscribe flights --url http://127.0.0.1:48213 " in line for line in lines)
    assert any("kill -9 104712   # the gateway: nothing gets lost" in line for line in lines)
    assert lines[-1].startswith("╰")


@pytest.mark.parametrize(("width", "height"), [(120, 40), (200, 50)])
def test_where_there_is_room_there_are_lines_between_the_parts(width: int, height: int) -> None:
    lines = shown(Screen(FULL), width, height).splitlines()
    assert sum(not line.strip("│ ") for line in lines) == 3
    assert any("--where 'altitude < 3000'" in line for line in lines)


def test_a_tiny_terminal_still_says_how_to_end_it() -> None:
    assert "Ctrl-C ends it" in shown(Screen(FULL), 60, height=5).splitlines()[0]


@pytest.mark.parametrize(
    ("width", "label"), [(80, "acked to received"), (140, "acknowledged to received")]
)
def test_it_is_said_what_the_latency_is_of(width: int, label: str) -> None:
    text = shown(Screen(replace(BUSY, p99_ms=8.0)), width)
    assert label in text
    assert "latency p50 / p99" in text


def test_nobody_is_dared_any_more_when_it_is_over() -> None:
    assert "kill -9 4711" in shown(Screen(BUSY))
    assert "kill -9" not in shown(Screen(replace(BUSY, phase="finished")))


def test_the_line_of_a_good_run() -> None:
    assert summary_of(arrivals=ALL).line() == (
        "produced 3, matched 3, delivered 3, lost 0, duplicates 0, "
        "latency from acknowledged to received p50 19.9 ms, p99 19.9 ms, "
        "windows changed 2, longest gap 20.0 ms"
    )


@pytest.mark.parametrize(
    ("summary", "words", "ok"),
    [
        (summary_of(arrivals=ALL), "lost 0", True),
        (summary_of(arrivals=ALL[:2]), "lost 1", False),
        (summary_of(arrivals=[*ALL, (0, 1)]), "duplicates 1", True),
        (summary_of(arrivals=[(0, 2), (0, 1), (0, 3)]), "out of order 1", False),
        (summary_of(arrivals=[*ALL, (1, 3)]), "unexpected 1", False),
        (summary_of(arrivals=ALL, acknowledged=2), "not acknowledged 1", True),
        (summary_of(arrivals=[], acknowledged=0), "produced 0", False),
    ],
    ids=["good", "lost", "duplicate", "out of order", "unexpected", "refused", "nothing at all"],
)
def test_the_verdict_of_a_run(summary: Summary, words: str, ok: bool) -> None:
    assert words in summary.line()
    assert summary.ok is ok
    assert "everything" in shown(summary_table(summary))


def test_the_summary_is_json_with_plain_numbers() -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(summary_of(arrivals=ALL)))
    assert {decoded["produced"], decoded["matched"], decoded["delivered"]} == {3}
    assert decoded["lost"] == decoded["duplicates"] == decoded["out_of_order"] == 0
    assert isinstance(decoded["p99_ms"], float)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0.0, "< 1 ms"), (4.26, "4.3 ms"), (999.4, "999 ms"), (1_234.5, "1.2 s"), (29_611, "29.6 s")],
    ids=str,
)
def test_durations_have_no_more_digits_than_help(duration_ms: float, text: str) -> None:
    assert format_ms(duration_ms) == text


# --- from totals to views ------------------------------------------------------------------------


def test_a_view_without_any_status_yet_is_empty_but_complete() -> None:
    view = Gauges(WATCHES).view(
        Scoreboard(len(WATCHES)),
        [0, 0],
        None,
        address="http://127.0.0.1:1",
        phase="subscribing",
        now_s=5.0,
        elapsed_s=1.0,
        total_s=None,
        windows=0,
        trouble="",
    )
    assert [partition.partition for partition in view.partitions] == [0, 1]
    assert [subscriber.name for subscriber in view.subscribers] == [w.name for w in WATCHES]
    assert shown(Screen(view))


@pytest.mark.parametrize(
    ("numbers", "changes"),
    [([], 0), ([7], 0), ([7, 7, 8, 8, 9], 2), ([7, 10], 3), ([7, 8, 1, 2], 3)],
    ids=["never seen", "the first is no change", "one by one", "skipped", "router restarted"],
)
def test_window_changes_are_counted(numbers: list[int], changes: int) -> None:
    count = WindowCount()
    for number in numbers:
        count.see([WindowStatus("router-1", "running", number, 0.0)])
    assert count.changes == changes


# --- consumers -----------------------------------------------------------------------------------

CREW = (
    ConsumerView("consumer-1", (0, 3), 120, 12.5, False),
    ConsumerView("consumer-2", tuple(range(30)), 80, 8.0, False),
    ConsumerView("consumer-3", (), 44, 0.0, True),
)


def test_consumers_are_shown_with_what_they_own_instead_of_subscribers() -> None:
    text = shown(Screen(replace(BUSY, consumers=CREW)))
    assert "consumer-1" in text
    assert "0, 3" in text
    assert "and 18 more" in text
    assert "has left" in text
    assert 'squawk in ["7500"]' not in text
    assert line(replace(BUSY, consumers=CREW)).endswith(
        "consumer-1 owns 2 got 120, consumer-2 owns 30 got 80, consumer-3 has left got 44"
    )


def test_the_summary_of_a_team_says_what_each_owned_and_got() -> None:
    board = Scoreboard(1)
    watches = (WATCHES[0],)
    made = summarize(board, watches, windows=0, seconds=1.0, seed=1, consumers=CREW)
    text = shown(summary_table(made))
    assert "owned at the end" in text
    assert "consumer-3" in text
    assert msgspec.json.decode(msgspec.json.encode(made))["consumers"][0] == {
        "name": "consumer-1",
        "targets": [0, 3],
        "received": 120,
        "left": False,
    }
