"""A fork behaves as the process it stands for (tests/forks.py)."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.forks import Fork, TextFork, forked

TELLS = """
import os, sys
print(sys.argv[1:], os.getcwd(), os.environ["TOLD"], os.environ.get("PATH"), sys.stdin.read())
print("complaint", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
WAITS = "import time; print('waits', flush=True); time.sleep(600)"


@pytest.mark.parametrize("code", [0, 3])
async def test_it_is_told_what_a_process_is_told_and_ends_as_one(tmp_path: Path, code: int) -> None:
    command = ("-c", TELLS, str(code), "two words")
    pipes: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
    fork = await forked(command, env={"TOLD": "this"}, cwd=tmp_path, **pipes)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env={"TOLD": "this"}, cwd=tmp_path, **pipes
    )
    given = b"x" * 200_000  # more than a pipe holds
    assert await fork.communicate(given) == await process.communicate(given)
    assert fork.returncode == process.returncode == code


@pytest.mark.parametrize("program", ["raise ValueError('a mistake')", "raise SystemExit('no')"])
def test_it_says_why_it_ends(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    with TextFork(["-c", program], os.environ, None) as fork:
        assert fork.wait(30) == done.returncode == 1
        assert fork.stderr.read().splitlines()[-1] == done.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
def test_it_hears_every_signal_however_early(number: signal.Signals, at_once: bool) -> None:
    with TextFork(["-c", WAITS], os.environ, None) as fork:
        if not at_once:
            assert fork.stdout.readline() == "waits\n"
        fork.send_signal(number)
        assert fork.wait(30) == -number


def test_forks_share_nothing_with_each_other() -> None:
    with (
        TextFork(["-c", "import sys; sys.stdin.read()"], os.environ, None) as first,
        TextFork(["-c", WAITS], os.environ, None) as second,
    ):
        assert second.stdout.readline() == "waits\n"
        first.stdin.close()
        assert first.wait(30) == 0, "the other one holds its input open"
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(0.01)


def test_one_that_has_ended_before_anybody_looks_tells_its_number_and_its_code() -> None:
    class Late(Fork):
        def _is_told(self, timeout_s: float | None) -> bool:
            """When all is told, not before."""
            over = select.poll()
            over.register(self.report_fd, 0)
            over.poll(30_000)
            return super()._is_told(timeout_s)

    program = "import os, sys; sys.stdout.write(str(os.getpid())); sys.exit(3)"
    late = Late(["-c", program], stdout=PIPE)
    assert late.wait(30) == 3
    assert late.stdout_fd is not None
    assert int(os.read(late.stdout_fd, 20)) == late.pid
