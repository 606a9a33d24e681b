"""The line that `headgate up` shows while it starts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.spinner import Spinner

from headgate.cli.starting import Starting, starting_line


@pytest.mark.parametrize(
    ("ready", "line"),
    [
        ([], "starting 12 s; Spark takes 10 to 30 s"),
        (["coordinator"], "starting 12 s: coordinator ready; Spark takes 10 to 30 s"),
        (
            ["coordinator", "gateway", "ingest"],
            "starting 12 s: coordinator, ingest, gateway ready; Spark takes 10 to 30 s",
        ),
        (["coordinator", "router"], "starting 12 s: coordinator, router ready"),
    ],
    ids=["nobody", "one", "all but the router", "the router"],
)
def test_it_says_for_how_long_and_who_is_ready(ready: list[str], line: str) -> None:
    assert starting_line(ready, 12.3) == line


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_it_is_one_line_of_the_terminal(width: int) -> None:
    at_s = 0.0
    starting = Starting(lambda: at_s)
    for role in ("coordinator", "gateway", "ingest"):
        starting.is_ready(role)
    at_s = 123.0
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(Spinner("dots", text=starting))
    assert isinstance(console.file, io.StringIO)
    [line] = console.file.getvalue().splitlines()
    assert len(line) <= width
    assert "starting 123 s" in line
    assert ("Spark takes 10 to 30 s" in line) == (width >= 80)
