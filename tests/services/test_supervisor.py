"""The supervisor with small programs as roles: restarts, orphans, and stops that end."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import psutil
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.role_logs import former
from headgate.config import Config
from headgate.services import supervisor as module
from headgate.services.supervisor import Household, RoleCommand, RoleFailed, Supervisor
from headgate.tasks import deaths
from headgate.wiring.machine import build_supervisor
from tests.waiting import arguments, until

WAIT_S = 30.0

STEADY = "import sys; print('ready here', flush=True); sys.stdin.read()"
DIES_LEAVING_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", child.pid, flush=True)
sys.exit(1)
"""
DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf])
print("ready", flush=True)
time.sleep(600)
"""
NEEDS_THE_OPERATOR = """
import sys
print("headgate: the moon is in the wrong house; move it", file=sys.stderr)
sys.exit(2)
"""
GIVES_UP_WITH_A_REASON = """
import sys
print("headgate: etcd can't be reached; check etcd.endpoints", file=sys.stderr)
sys.exit(1)
"""


def supervised(
    tmp_path: Path, program: str, stop_timeout_s: float = 20.0
) -> tuple[Supervisor, list[str]]:
    said: list[str] = []
    command = RoleCommand(
        "router",
        [sys.executable, "-c", program],
        {},
        tmp_path / "router.log",
        stop_timeout_s=stop_timeout_s,
    )
    return Supervisor([command], said.append), said


def sleepers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "sleep(600)" in str(arguments(child))]


async def test_a_role_that_was_killed_comes_back_and_that_is_said(tmp_path: Path) -> None:
    supervisor, said = supervised(tmp_path, STEADY)
    await supervisor.start()
    pid = supervisor.pids["router"]
    assert pid is not None
    psutil.Process(pid).kill()
    await until(lambda: "router is back" in said)
    assert said[0].startswith("router was killed by SIGKILL; starting it again in")
    await supervisor.stop()
    assert supervisor.pids["router"] is None


async def test_a_role_that_isnt_back_yet_serves_under_no_pid(tmp_path: Path) -> None:
    ready_once = tmp_path / "ready"
    program = f"""
import pathlib, sys
mark = pathlib.Path({str(ready_once)!r})
if not mark.exists():
    mark.touch()
    print("ready", flush=True)
sys.stdin.read()
"""
    supervisor, _ = supervised(tmp_path, program)
    await supervisor.start()
    pid = supervisor.serving["router"]
    assert pid is not None
    assert pid == supervisor.pids["router"]
    psutil.Process(pid).kill()
    await until(lambda: supervisor.pids["router"] not in (None, pid))
    assert supervisor.serving == {"router": None}
    await supervisor.stop()


async def test_a_role_is_restarted_though_its_child_holds_its_output(tmp_path: Path) -> None:
    supervisor, said = supervised(tmp_path, DIES_LEAVING_A_CHILD)
    await supervisor.start()
    await until(lambda: any("ended with code 1" in sentence for sentence in said))
    await until(lambda: "router is back" in said)
    await supervisor.stop()
    assert sleepers() == []


async def test_a_stop_is_bounded_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_GRACE_S", 0.5)
    supervisor, _ = supervised(tmp_path, DEAF, stop_timeout_s=0.5)
    await supervisor.start()
    started_s = time.monotonic()
    await supervisor.stop()
    assert time.monotonic() - started_s < WAIT_S
    assert sleepers() == []


async def test_whoever_hurries_does_not_wait_for_what_is_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_GRACE_S", 0.5)
    supervisor, _ = supervised(tmp_path, DEAF, stop_timeout_s=600.0)
    await supervisor.start()
    stopping = asyncio.create_task(supervisor.stop())
    ended, _ = await asyncio.wait({stopping}, timeout=0.3)
    assert not ended
    supervisor.hurry()
    await asyncio.wait_for(stopping, WAIT_S)
    assert sleepers() == []


async def test_a_role_that_needs_the_operator_is_not_tried_again(tmp_path: Path) -> None:
    supervisor, said = supervised(tmp_path, NEEDS_THE_OPERATOR)
    with pytest.raises(RoleFailed, match="the moon is in the wrong house; move it"):
        await supervisor.start()
    assert said == []
    await supervisor.stop()


async def test_why_a_role_ended_is_said_once_with_where_there_is_more(tmp_path: Path) -> None:
    supervisor, said = supervised(tmp_path, GIVES_UP_WITH_A_REASON)
    starting = asyncio.create_task(supervisor.start())
    await until(lambda: len(said) >= 2)
    await supervisor.stop()
    await starting
    assert said[0] == (
        "router ended with code 1: etcd can't be reached; check etcd.endpoints. Starting it again "
        f"in 0.2 s (more in {tmp_path / 'router.log'})"
    )
    assert said[1] == "router ended with code 1 for the same reason; starting it again in 0.4 s"


async def test_the_words_of_an_earlier_run_are_not_the_reason_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "router.log").write_text("headgate: the moon is in the wrong house\n")
    supervisor, said = supervised(tmp_path, DIES_LEAVING_A_CHILD)
    await supervisor.start()
    await until(lambda: said)
    await supervisor.stop()
    assert said[0] == "router ended with code 1; starting it again in 0.2 s"


async def test_what_the_process_had_started_before_is_left_alone() -> None:
    async def sleeper() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(600)"
        )

    stranger = await sleeper()
    try:
        household = Household()
        newcomer = await sleeper()
        await household.end_orphans()
        assert await asyncio.wait_for(newcomer.wait(), WAIT_S) != 0
        await household.end_all()
        assert psutil.pid_exists(stranger.pid)
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_role_that_nobody_looks_after_any_more_ends_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, _ = supervised(tmp_path, STEADY)
    await supervisor.start()
    pid = supervisor.pids["router"]
    assert pid is not None

    async def mistaken(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(module.RoleProcess, "_spawn", mistaken)
    psutil.Process(pid).kill()
    with pytest.raises(RuntimeError, match="a mistake"):
        await asyncio.wait_for(supervisor.watch(), WAIT_S)
    assert deaths.counts() == {"supervisor role": 1}
    await supervisor.stop()


BEGINS = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
print("ready", flush=True)
time.sleep(600)
"""
WAITS_FOR_IT = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""


async def test_what_begins_early_does_not_wait_for_the_coordinator(tmp_path: Path) -> None:
    begun = str(tmp_path / "begun")
    commands = [
        RoleCommand(
            name,
            [sys.executable, "-c", program, begun],
            {},
            tmp_path / f"{name}.log",
            begins_early=name == "router",
        )
        for name, program in (
            ("coordinator", WAITS_FOR_IT),
            ("gateway", BEGINS),
            ("router", BEGINS),
        )
    ]
    ready: list[str] = []
    supervisor = Supervisor(commands, lambda _: None)
    async with asyncio.timeout(20):
        await supervisor.start(ready.append)
    assert ready[0] == "coordinator"
    assert list(supervisor.pids) == ["coordinator", "gateway", "router"]
    await supervisor.stop()


async def until_it_fails(supervisor: Supervisor) -> None:
    await supervisor.start()
    await supervisor.watch()


async def test_a_log_that_grows_too_large_is_begun_anew_under_its_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the last words are looked for in what it says from then on."""
    monkeypatch.setattr(module, "LOOK_AT_LOG_S", 0.01)
    program = """
import os, sys
print("ready here", flush=True)
written = b"chatter\\n" * 1000
os.write(2, written)
while os.fstat(2).st_size >= len(written):
    pass
os.write(2, b"headgate: and now something else\\n")
sys.exit(2)
"""
    log_file = tmp_path / "router.log"
    command = RoleCommand(
        "router", [sys.executable, "-c", program], {}, log_file, log_max_bytes=4_000
    )
    supervisor = Supervisor([command], lambda _: None)
    try:
        with pytest.raises(RoleFailed, match="and now something else"):
            await asyncio.wait_for(until_it_fails(supervisor), WAIT_S)
    finally:
        await supervisor.stop()
    assert former(log_file).read_bytes() == b"chatter\n" * 1000
    assert log_file.read_text() == "headgate: and now something else\n"


@pytest.mark.parametrize("role", ["ingest", "router"])
def test_roles_are_given_the_size_of_their_logs(tmp_path: Path, role: str) -> None:
    folder = DataFolder.open(tmp_path)
    built = build_supervisor(Config(log_file_size=5), folder, lambda _: None, [role])
    assert built._commands[role].log_max_bytes == 5
