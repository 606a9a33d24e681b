"""`headgate status`: everything there is, in the room there is."""

from __future__ import annotations

import io
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console

from headgate.cli.views.status import ROWS_MAX, status_view
from headgate.model.api import (
    FilterStatus,
    GatewayStatus,
    LaneStatus,
    MoveStatus,
    Status,
    Totals,
    WindowStatus,
)
from headgate.model.control.reports import GatewayLink
from headgate.model.letters import GatewayLetters
from tests.cli.command import headgate
from tests.cli.operated import OperatedServer, partition, status, topic

BUSY = status(
    topic(
        "flights",
        partition(0, head=1_234, settled=1_200, lag=34, lag_ms=31_000, rate=12.0),
        partition(1, router="r-2", epoch=4),
    ),
    lanes=[LaneStatus("r-1", 0, 8, 1, 99, ["flights:0"], 1_200, 600, 599, 2, 3, cpu=0.42)],
    gateways=[GatewayStatus("g-1", 4, 17, 599, filter_cost_us=12_500)],
    filters=[
        FilterStatus("flights", 'squawk.matches("7[567]00")', 2_400, 7_200, 3, ["g-1"], ["acme"])
    ],
    windows=[WindowStatus("r-1", "open", 8, 120.4)],
    moves=[MoveStatus("flights", 1, "r-1", "r-2", "starting", 1_500)],
    clients=12,
)


def shown(given: Status, *, width: int, everything: bool = False) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(status_view(given, everything=everything))
    return cast("io.StringIO", console.file).getvalue().splitlines()


def has(lines: list[str], row: str) -> bool:
    """Whether a line begins with these words, whatever is between them."""
    words = row.split()
    return any(line.split()[: len(words)] == words for line in lines)


def named_rows(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line.startswith("flights:")]


async def test_status_shows_everything_there_is(operated: OperatedServer) -> None:
    operated.now = BUSY
    result = await headgate("status", url=operated.url)
    assert (result.code, result.err) == (0, "")
    for line in (
        f"Headgate 0.1.0 at {operated.url} leader c-1",
        "generation 0.7 revision 0.3 subscriptions 0 clients 12",
        "ingest i-1 ready 2 - 0 ms -",
        "flights 2 34 31.0 s 12/s 0.7 1,244 keyed 1",
        "flights:0 i-1 (1) r-1 (2) 34 31.0 s 1,234 12/s 1,200",
        "flights:1 i-1 (1) r-2 (4) 0 - 10 - 10",
        "flights:1 r-1 -> r-2 starting 1.5 s",
        "r-1 0 flights:0 42% 1,200 600 599 2 8 1 99 0.3",
        "g-1 4 17 599 12.5 ms",
        '2.4 ms 3 7.2 ms flights g-1 acme squawk.matches("7[567]00")',
        "r-1 open 8 120 ms",
    ):
        assert result.shows(line), line


@pytest.mark.parametrize(
    ("change_ms", "took"), [(0.4, "0 ms"), (999.4, "999 ms"), (19_040.2, "19.0 s")]
)
def test_a_change_that_took_seconds_is_said_in_seconds(change_ms: float, took: str) -> None:
    lines = shown(status(windows=[WindowStatus("r-1", "open", 8, change_ms)]), width=100)
    assert has(lines, f"r-1 open 8 {took}")


FATES = Totals(10, 9, 1, acknowledged=3, parked=2, dead=1, released=1, unmatched=1, skipped=1)


def test_what_became_of_every_record_fits_a_narrow_screen() -> None:
    lines = shown(status(totals=FATES), width=80)
    sums, outcomes = (lines.index(title) for title in ("Records", "Settled records"))
    assert [line.split() for line in lines[sums + 1 : outcomes - 1]] == [
        ["appended", "waiting", "settled"],
        ["10", "1", "9"],
    ]
    assert [line.split() for line in lines[outcomes + 1 : outcomes + 3]] == [
        ["acknowledged", "unmatched", "parked", "dead", "released", "skipped"],
        ["3", "1", "2", "1", "1", "1"],
    ]


def test_records_that_were_settled_twice_or_never_counted_are_said_where_there_are_any() -> None:
    lines = shown(status(totals=Totals(10, 9, 1, 11, repeated=3, uncounted=1)), width=80)
    assert has(lines, "11 0 0 0 0 0 3 1")
    assert not any("repeated" in line for line in shown(status(totals=FATES), width=120))


def test_partitions_stores_and_gateways_in_trouble_are_named_with_the_reason() -> None:
    broken = GatewayLink("g-1", waiting=12, pressure="hard", breaker="half_open", error="refused")
    lane = LaneStatus("r-1", 0, 8, 1, 99, ["flights:0"], 0, 0, 0, 0, 3)
    lanes = [
        msgspec.structs.replace(lane, links=[broken, GatewayLink("g-2")], letters="full"),
        msgspec.structs.replace(lane, lane=1, letters="full"),
    ]
    stale = partition(0, state="stale", reason="seq 3 to 7 are gone")
    lines = shown(status(topic("flights", stale, partition(1)), lanes=lanes), width=100)
    assert "flights:0 is stale: seq 3 to 7 are gone" in lines
    assert lines.count("letters can't be kept: full") == 1
    assert has(lines, "g-1 r-1 0 12 hard half open refused")
    assert not has(lines, "g-2 r-1")


def test_partitions_without_records_are_only_counted() -> None:
    empty = [partition(number, head=0, settled=0) for number in range(1, 4)]
    lost = partition(4, head=0, settled=0, router=None)
    mixed = status(topic("flights", partition(0), *empty, lost))
    lines = shown(mixed, width=80)
    assert named_rows(lines) == ["flights:0", "flights:4"]
    assert "3 partitions without records; --partitions shows all of them" in lines
    assert len(named_rows(shown(mixed, width=80, everything=True))) == 5
    alone = shown(status(topic("flights", empty[0])), width=80)
    assert named_rows(alone) == []
    assert "1 partition without records; --partitions shows all of them" in alone


def test_a_usual_terminal_shows_the_pid_of_every_node() -> None:
    url = "http://127.0.0.1:48213"
    nodes = [msgspec.structs.replace(one, url=url, pid=104_711) for one in status().nodes]
    lines = shown(status(nodes=nodes), width=80)
    assert sum("104711" in line for line in lines) == len(nodes)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("held", "said"),
    [(0, ""), (1, "g-1 holds 1 subscriber back"), (1_200, "g-1 holds 1,200 subscribers back")],
)
def test_subscribers_that_get_nothing_at_the_moment_are_counted(held: int, said: str) -> None:
    lines = shown(status(gateways=[GatewayStatus("g-1", 1_200, 0, 9, held)]), width=80)
    assert [line[: len(said)] for line in lines if "holds" in line] == ([said] if said else [])


async def test_json_has_every_field(operated: OperatedServer) -> None:
    operated.now = msgspec.structs.replace(BUSY, totals=FATES)
    found = cast("dict[str, Any]", (await headgate("status", "--json", url=operated.url)).json)
    assert found["topics"][0]["details"][0]["rate"] == 12.0
    assert found["topics"][0]["adopted"] == 7
    assert found["topics"][0]["details"][0]["state"] == "healthy"
    assert found["totals"]["dead"] == 1
    assert found["lanes"][0]["cpu"] == 0.42
    assert found["moves"] == [
        {
            "topic": "flights",
            "partition": 1,
            "from": "r-1",
            "to": "r-2",
            "phase": "starting",
            "age_ms": 1_500,
        }
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_nothing_is_wider_than_the_terminal_and_the_owners_are_always_there(width: int) -> None:
    lines = shown(BUSY, width=width)
    assert max(len(line) for line in lines) <= width
    if width >= 60:
        assert has(lines, "flights:0 i-1 (1) r-1 (2) 34 31.0 s")


def test_at_100_columns_no_row_is_broken() -> None:
    assert len(shown(BUSY, width=100)) == len(shown(BUSY, width=200))


def many(count: int, **trouble: object) -> Status:
    details = [partition(number) for number in range(count - 1)]
    return status(topic("flights", *details, partition(count - 1, **trouble)))


def test_a_thousand_partitions_are_added_up_and_it_says_how_to_see_them() -> None:
    lines = shown(many(1_000), width=100)
    assert len(lines) < 30
    assert "1,000 partitions; --partitions shows all of them" in lines
    assert has(lines, "flights 1,000 0 - - 0.7 10,000 keyed 1")


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"owner": None}, id="nobody takes produces"),
        pytest.param({"router": None}, id="nobody reads it"),
        pytest.param({"lag": 5, "lag_ms": 31_000}, id="late"),
    ],
)
def test_of_a_thousand_partitions_the_troubled_one_is_shown(trouble: dict[str, object]) -> None:
    assert named_rows(shown(many(1_000, **trouble), width=100)) == ["flights:999"]


def test_all_partitions_are_there_when_asked_for() -> None:
    assert len(named_rows(shown(many(1_000), width=100, everything=True))) == 1_000


def test_many_moves_are_cut_with_a_word_about_it() -> None:
    moves = [MoveStatus("flights", n, "r-1", "r-2", "releasing") for n in range(500)]
    lines = shown(status(topic("flights", partition(0)), moves=moves), width=100)
    assert "Moves (500)" in lines
    assert f"and {500 - ROWS_MAX} more; --partitions shows all of them" in lines


def test_a_lane_names_its_partitions_in_few_words() -> None:
    refs = [f"flights:{number}" for number in range(250)]
    lane = LaneStatus("r-1", 0, 8, 1, 99, refs, 0, 0, 0, 0, 3)
    lines = shown(status(lanes=[lane]), width=100)
    assert has(lines, "r-1 0 flights:0-249 0%")


def test_letters_are_shown_by_gateway() -> None:
    letters = [
        GatewayLetters("g-1", parked=1_200, parked_ms=90_000),
        GatewayLetters("g-2", dead=3, dead_ms=7_200_000),
    ]
    lines = shown(status(letters=letters), width=100)
    assert "Letters" in lines
    assert has(lines, "g-1 1,200 1.5 min 0 -")
    assert has(lines, "g-2 0 - 3 2.0 h")
    assert "Letters" not in shown(status(), width=100)


def test_letters_that_cant_be_counted_are_said() -> None:
    lines = shown(status(letters_error="the disk is full"), width=100)
    assert "not counted: the disk is full" in lines


def test_learning_is_said() -> None:
    assert any("learns who owns what" in line for line in shown(status(learning=True), width=100))


async def test_every_wrong_interval_is_refused(operated: OperatedServer) -> None:
    result = await headgate("status", "--watch", "--every", "0", url=operated.url)
    assert result.code == 2
    assert "--every" in result.err


def test_an_age_that_nobody_knows_is_shown_as_what_it_is_at_least() -> None:
    late = partition(0, head=9, settled=4, lag=5, lag_ms=2_000, lag_known=False)
    lines = shown(status(topic("flights", late)), width=120)
    assert any("\u2265 2" in line for line in lines), lines
