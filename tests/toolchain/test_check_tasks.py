"""The check that tasks and threads are started in one way finds each of the others."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_tasks.py"
main: Callable[[list[str]], int] = runpy.run_path(str(SCRIPT))["main"]


def check(folder: Path, source: str, name: str = "module.py") -> int:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    return main([str(folder)])


@pytest.mark.parametrize(
    "line",
    [
        "asyncio.create_task(work())",
        "asyncio.ensure_future(work())",
        "asyncio.get_running_loop().create_task(work())",
        "self._loop.create_task(work())",
        "asyncio.Task(work())",
        "threading.Thread(target=work).start()",
        "start = loop.create_task",
        "await asyncio.shield(work())",
        "class Writer(threading.Thread): ...",
        "from asyncio import create_task",
        "from threading import Thread",
    ],
)
def test_every_other_way_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert check(tmp_path, f"import asyncio\n{line}\n") == 1
    said = capsys.readouterr().err
    assert "module.py:2: " in said
    assert "headgate.tasks" in said


@pytest.mark.parametrize(
    "source",
    [
        "self._tasks: set[asyncio.Task[None]] = set()",
        "async def f():\n async with asyncio.TaskGroup() as group:\n  group.create_task(work())",
        "def f(group: asyncio.TaskGroup):\n group.create_task(work())",
        "crew.start('listen', work())",
        "async def f(task):\n await asyncio.shield(task)",
        "def f(thread: threading.Thread): ...",
    ],
)
def test_types_task_groups_and_the_one_way_are_not(tmp_path: Path, source: str) -> None:
    assert check(tmp_path, source) == 0


def test_the_one_way_itself_may(tmp_path: Path) -> None:
    assert check(tmp_path, "asyncio.create_task(work())", "headgate/tasks.py") == 0


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import random as chance",
        "from time import monotonic",
        "from secrets import token_hex",
        "def f():\n import uuid",
        "import os\nos.urandom(8)",
        "import os\npid = os.getpid",
        "import os as system\nsystem.getpid()",
        "import os.path\nos.getpid()",
        "from os import urandom",
        "import asyncio\nawait asyncio.to_thread(work)",
        "from asyncio import to_thread",
        "await loop.run_in_executor(None, work)",
        "from concurrent.futures import ThreadPoolExecutor",
        "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        "from datetime import datetime\ndatetime.now(UTC)",
    ],
)
@pytest.mark.parametrize("package", ["lane", "services/gateway", "client"])
def test_whoever_asks_the_machine_directly_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str, line: str
) -> None:
    assert check(tmp_path, f"{line}\n", f"headgate/{package}/module.py") == 1
    said = capsys.readouterr().err
    assert said.count("module.py:") == 1
    assert "headgate.ports.machine" in said


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.path.join('a', 'b')",
        "from concurrent.futures import Future",
        "from datetime import timedelta",
        "machine.wall_ms()",
        "asyncio.get_running_loop().time()",
        "self._random = self._machine.jitter",
        "def f(time): return time.time()",
    ],
)
def test_what_a_machine_does_not_give_is_free(tmp_path: Path, source: str) -> None:
    assert check(tmp_path, source, "headgate/lane/module.py") == 0


@pytest.mark.parametrize(
    "name",
    ["headgate/adapters/machine.py", "headgate/services/supervisor.py", "headgate/bench/run.py"],
)
def test_adapters_the_supervisor_and_benchmarks_may_ask_it(tmp_path: Path, name: str) -> None:
    assert check(tmp_path, "import time\ntime.time()", name) == 0


@pytest.mark.parametrize("package", ["decide/lane", "model", "ports"])
@pytest.mark.parametrize(
    "line", ["import uuid", "from datetime import datetime\ndatetime.now(UTC)"]
)
def test_what_is_decided_asks_no_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str, line: str
) -> None:
    assert check(tmp_path, f"{line}\n", f"headgate/{package}/module.py") == 1
    assert "as an argument" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["decide", "model", "ports", "lane", "services", "client"])
def test_nobody_but_adapters_opens_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    source = "target.open()\nwith open(name) as file: ...\n"
    assert check(tmp_path, source, f"headgate/{package}/module.py") == 1
    assert "module.py:2: open: " in capsys.readouterr().err
