"""Tables that fit, and names and times in few words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headgate.cli.views.tables import Grid, duration, named, plural, rate


def header(width: int) -> list[str]:
    grid = Grid(("name", "count>", "?first>", "?second"), [("abcdef", "1", "2", "3")])
    console = Console(width=width, file=io.StringIO())
    console.print(grid)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()[0].split()


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (28, ["name", "count", "first", "second"]),
        (27, ["name", "count", "first"]),
        (19, ["name", "count"]),
    ],
    ids=["all fit", "the last gives way", "the others too"],
)
def test_columns_give_way_from_the_end(width: int, columns: list[str]) -> None:
    assert header(width) == columns


def printed(grid: Grid, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(grid)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_single_row_that_doesnt_fit_goes_on_below() -> None:
    grid = Grid(("appended>", "waiting>", "acknowledged>", "dead>"), [("30", "0", "1,234", "0")])
    assert printed(grid, 37) == [
        "appended  waiting  acknowledged  dead",
        "      30        0         1,234     0",
    ]
    assert printed(grid, 36) == [
        "appended  waiting  acknowledged",
        "      30        0         1,234",
        "dead",
        "   0",
    ]
    assert printed(grid, 12)[4:6] == ["acknowledged", "       1,234"]


def test_headings_of_several_rows_stay_whole() -> None:
    rows = [("a-rather-long-name", "ingest-1"), ("another-long-name", "ingest-2")]
    grid = Grid(("partition", "log owner (epoch)"), rows)
    assert printed(grid, 30)[0] == "partition    log owner (epoch)"


@pytest.mark.parametrize(
    ("partitions", "words"),
    [
        ([], ""),
        ([("a", 3)], "a:3"),
        ([("a", 2), ("a", 0), ("a", 1)], "a:0-2"),
        ([("a", 0), ("a", 2), ("b", 1)], "a:0,2 b:1"),
        ([("a", n) for n in range(0, 20, 2)], "a:0,2,4,6 and 6 more"),
        (
            [("a", 0), ("b", 0), ("c", 0), ("d", 0), ("e", 0), ("e", 1)],
            "a:0 b:0 c:0 d:0 and 2 more",
        ),
    ],
    ids=["none", "one", "a run", "two topics", "many runs", "many topics"],
)
def test_partitions_are_named_in_few_words(partitions: list[tuple[str, int]], words: str) -> None:
    assert named(partitions) == words


def test_numbers_come_with_their_units() -> None:
    assert [duration(ms) for ms in (7, 1_500, 90_000)] == ["7 ms", "1.5 s", "1.5 min"]
    assert [rate(per_s) for per_s in (0.0, 0.6, 12_345.0)] == ["-", "1/s", "12,345/s"]
    assert [plural(count, "node") for count in (0, 1, 2_000)] == [
        "0 nodes",
        "1 node",
        "2,000 nodes",
    ]
