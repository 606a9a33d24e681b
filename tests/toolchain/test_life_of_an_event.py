"""docs/architecture.md tells the life of an event call by call: all of it is there to be read."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from headgate.config import Config
from headgate.config.sections.roles import RouterSettings
from tests.sim.cluster import running
from tests.virtual_time import run_virtual

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "headgate"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
LIFE = TEXT.partition("### The same, call by call")[2].partition("\n## ")[0]
SETTLED_S = 3.0
"""By then a window has begun whose lanes knew the subscription from their beginning."""
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
TOLD = re.compile(r"(\d+) calls in (\d+) files")


class Call(NamedTuple):
    file: str
    function: str


def named(text: str) -> list[Call]:
    """Each function with the file that was named last before it."""
    calls: list[Call] = []
    file = ""
    for name in re.findall(r"`([^`]+)`", text):
        if name.endswith(".py"):
            file = name
        elif file:
            calls.append(Call(file, name))
    return calls


NAMED = set(named(LIFE))


def rows() -> list[tuple[list[Call], list[Call]]]:
    """Where the event goes, and what is asked there."""
    cells = [line.strip("| ").split(" | ") for line in LIFE.splitlines() if line.startswith("| `")]
    return [(named(" ".join(row[:2])), named(row[2] if len(row) > 2 else "")) for row in cells]


OURS = [call for calls, _ in rows() for call in calls if not call.file.startswith("adapters/")]


@cache
def defined(file: str) -> frozenset[str]:
    """The classes and functions of a source, methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse((SOURCES / file).read_text()).body:
        if isinstance(node, ast.ClassDef | FUNCTIONS):
            found.add(node.name)
        if isinstance(node, ast.Assign):
            found.update(one.id for one in node.targets if isinstance(one, ast.Name))
        if isinstance(node, ast.ClassDef):
            found.update(
                f"{node.name}.{one.name}" for one in node.body if isinstance(one, FUNCTIONS)
            )
    return frozenset(found)


def written(file: str) -> set[str]:
    """Those of them that are functions or methods."""
    tree = ast.parse((SOURCES / file).read_text())
    functions = [one for one in ast.walk(tree) if isinstance(one, FUNCTIONS)]
    return {
        call for call in defined(file) if call.rpartition(".")[2] in {f.name for f in functions}
    }


@pytest.mark.parametrize("call", sorted(NAMED), ids=" ".join)
def test_each_step_is_in_its_file(call: Call) -> None:
    assert call.function in defined(call.file)


def test_it_goes_one_way() -> None:
    on_the_way = [{call.file for call in calls} for calls, _ in rows()]
    assert all(len(files) == 1 for files in on_the_way)
    files = [file for [file] in on_the_way]
    assert len(files) == len(set(files)), "no file is come back to"


class Trace:
    """The functions of ours that are called, in order; of those that the document names, with what
    called them, up to the first that it names as well, or that is an adapter's."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.between: list[list[Call]] = []

    def __call__(self, frame: FrameType, event: str, _of: Any) -> None:
        if event == "call" and (call := ours(frame)) is not None:
            self.calls.append(call)
            self.between.append(unnamed_above(frame) if call in NAMED else [])


def ours(frame: FrameType) -> Call | None:
    file = frame.f_code.co_filename
    if not file.startswith(f"{SOURCES}/"):
        return None
    return Call(file[len(f"{SOURCES}/") :], frame.f_code.co_qualname)


def unnamed_above(frame: FrameType) -> list[Call]:
    """Nothing where the loop began it: what a task was begun for isn't a step."""
    found: list[Call] = []
    above = frame.f_back
    while above is not None:
        call = ours(above)
        if call is not None and (call in NAMED or call.file.startswith("adapters/")):
            return found
        if call is not None and "<" not in call.function:
            found.append(call)
        above = above.f_back
    return []


async def sent_and_read() -> Trace:
    trace = Trace()
    config = Config(router=RouterSettings(window=1.0))
    async with running(config=config, gateways=1, ingest=1) as cluster:
        await cluster.create_topic(cluster.gateways[0].url, "flights", 1)
        [gateway] = cluster.gateways
        async with (
            cluster.producer(gateway.url) as producer,
            cluster.subscriber(gateway.url, "flights", where="alt > 1") as subscriber,
        ):
            for _ in range(2):
                await producer.send("flights", {"alt": 2}, key="a")
                await anext(subscriber)
                await asyncio.sleep(SETTLED_S)
            sys.setprofile(trace)
            try:
                await producer.send("flights", {"alt": 2}, key="a")
                await asyncio.sleep(1.0)  # it is there when it is asked for
                async for _ in subscriber:
                    break
            finally:
                sys.setprofile(None)
    return trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return run_virtual(sent_and_read())


def test_an_event_goes_this_way(trace: Trace) -> None:
    """But for adapters: here those in memory are in their place."""
    went = iter(trace.calls)
    assert [call for call in OURS if call not in went] == [], "each is called after the one before"


def test_no_step_is_left_out(trace: Trace) -> None:
    each = zip(trace.calls, trace.between, strict=True)
    assert {one for call, between in each if call in OURS for one in between} == set()


def test_what_is_asked_is_asked(trace: Trace) -> None:
    """But for adapters, and what isn't written in Python."""
    told = {call for _, asked in rows() for call in asked if call.function in written(call.file)}
    assert {call for call in told if not call.file.startswith("adapters/")} <= {*trace.calls}


def test_its_length_is_told() -> None:
    calls = {call for row in rows() for part in row for call in part}
    told = TOLD.search(LIFE)
    assert told is not None
    assert (int(told[1]), int(told[2])) == (len(calls), len({call.file for call in calls}))
