"""Python processes that begin with everything imported: forks of one that has done it once.

To import what a command or a role needs takes most of a second, and the tests start hundreds. A
fork is a process like any other, with a pid, pipes, an environment, signals and an exit code of its
own. What it doesn't show is how an interpreter starts with nothing: `headgate up` and all that it
starts, routers on Spark and some tests of the command line begin as users' processes do.

Invariant: the process that forks does nothing else. It has one thread and no connection, event
loop or file that its forks would share, and it ends with the run of tests that started it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from asyncio.streams import FlowControlMixin
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any, NoReturn, Self

import msgspec

STARTED_S = 60.0
REQUEST_BYTES_MAX = 150_000
HEARD = (signal.SIGINT, signal.SIGTERM)
IMPORTED = (
    *(f"headgate.cli.{name}" for name in ("dlq", "doctor", "node", "partition", "produce")),
    *(f"headgate.cli.{name}" for name in ("rebalance", "roles", "status", "subscribe", "topic")),
    # What these import when they are called.
    *(f"headgate.cli.views.{name}" for name in ("groups", "letters", "status", "tables")),
    *(
        "headgate.cli.reading.json_lines",
        "headgate.cli.reading.line_source",
        "headgate.cli.views.produce",
    ),
    *("headgate.adapters.http.server", "headgate.adapters.http.http1_server"),
    *("headgate.adapters.listeners", "headgate.adapters.picows.server"),
    *("headgate.adapters.etcd.checkpoints", "headgate.adapters.etcd.coordination"),
    *("headgate.adapters.etcd.election", "headgate.adapters.processes"),
    *("headgate.client", "headgate.client.producer", "headgate.client.subscriber"),
    *("headgate.client.producing.topic_stream", "headgate.services.coordinator.service"),
    *("headgate.services.gateway.service", "headgate.services.ingest.node"),
    *("headgate.services.router.service", "headgate.wiring.lanes"),
    *("pydantic.type_adapter", "rich.progress"),
    # Programs of the tests.
    *("tests.contracts.appending_process", "tests.contracts.leading_process"),
    *("tests.system.consumer_process", "tests.system.plain_router"),
)
"""What the commands, the roles and the tests' own programs need."""


REPORT_BYTES = 20


class Request(msgspec.Struct, array_like=True):
    """What to run, as Python's command line says it, and where."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str


# --- in a test -----------------------------------------------------------------------------------


class Fork:
    """As much of `subprocess.Popen` as the tests use, for one thread.

    `arguments` are those of a Python: `-m MODULE …` or `-c PROGRAM …`.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        request = Request(
            list(arguments),
            dict(os.environ if env is None else env),
            str(Path.cwd() if cwd is None else cwd),
        )
        self.returncode: int | None = None
        with ExitStack() as given:
            ends = [_end(asked, n, given) for n, asked in enumerate((stdin, stdout, stderr))]
            self.stdin_fd, self.stdout_fd, self.stderr_fd = (ours for _, ours in ends)
            self.report_fd, reporting = os.pipe()
            given.callback(os.close, reporting)
            _forking().ask(request, [*(theirs for theirs, _ in ends), reporting])
        assert self._is_told(STARTED_S), "nothing was forked"
        self.pid = int(os.read(self.report_fd, REPORT_BYTES))

    def poll(self) -> int | None:
        if self.returncode is None and self._is_told(0):
            self.returncode = int(os.read(self.report_fd, REPORT_BYTES))
            os.close(self.report_fd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._is_told(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        return code

    def _is_told(self, timeout_s: float | None) -> bool:
        waiting = select.poll()
        waiting.register(self.report_fd, select.POLLIN)
        return bool(waiting.poll(None if timeout_s is None else timeout_s * 1_000))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _end(asked: int | None, number: int, given: ExitStack) -> tuple[int, int]:
    """The fork's standard input, output or error, and our end of it, -1 where there is none."""
    if asked != PIPE:
        return number if asked is None else asked, -1
    reading, writing = os.pipe()
    theirs, ours = (reading, writing) if number == 0 else (writing, reading)
    given.callback(os.close, theirs)
    return theirs, ours


class TextFork(Fork):
    """One whose standard streams are all pipes of lines."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> None:
        super().__init__(arguments, env=env, cwd=cwd, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        self.stdin: IO[str] = os.fdopen(self.stdin_fd, "w")
        self.stdout: IO[str] = os.fdopen(self.stdout_fd)
        self.stderr: IO[str] = os.fdopen(self.stderr_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()


class AsyncFork:
    """As much of `asyncio.subprocess.Process` as the tests use."""

    def __init__(self, fork: Fork) -> None:
        self._fork = fork
        self.pid, self.send_signal = fork.pid, fork.send_signal
        self.terminate, self.kill = fork.terminate, fork.kill
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    async def connected(self) -> Self:
        fork, loop = self._fork, asyncio.get_running_loop()
        if fork.stdin_fd >= 0:
            pipe = os.fdopen(fork.stdin_fd, "wb", 0)
            transport, protocol = await loop.connect_write_pipe(FlowControlMixin, pipe)
            self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self.stdout, self.stderr = [await _reader(fd) for fd in (fork.stdout_fd, fork.stderr_fd)]
        return self

    @property
    def returncode(self) -> int | None:
        return self._fork.poll()

    async def wait(self) -> int:
        code = self._fork.poll()
        if code is None:
            loop, told = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(self._fork.report_fd, told.set)
            try:
                await told.wait()
            finally:
                loop.remove_reader(self._fork.report_fd)
            code = self._fork.wait()
        return code

    async def communicate(self, given: bytes | None = None) -> tuple[bytes, bytes]:
        _, out, err = await asyncio.gather(
            self._give(given), _whole(self.stdout), _whole(self.stderr)
        )
        await self.wait()
        if self.stdin is not None:
            self.stdin.close()
        return out, err

    async def _give(self, given: bytes | None) -> None:
        if self.stdin is None or given is None:
            return
        try:
            self.stdin.write(given)
            await self.stdin.drain()
            self.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            pass  # It didn't want all of it.


async def _reader(fd: int) -> asyncio.StreamReader | None:
    if fd < 0:
        return None
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
    )
    return reader


async def _whole(reader: asyncio.StreamReader | None) -> bytes:
    return b"" if reader is None else await reader.read()


async def forked(arguments: Sequence[str], **options: Any) -> AsyncFork:
    """As `asyncio.create_subprocess_exec`; the options are those of `Fork`."""
    return await AsyncFork(Fork(arguments, **options)).connected()


class Forking:
    """The process that forks; started by who first wants a fork, ended with the run of tests."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=Path(__file__).parents[1],
                # Threads of a library that computes would be missing in a fork.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )

    def ask(self, request: Request, descriptors: list[int]) -> None:
        socket.send_fds(self._ours, [msgspec.json.encode(request)], descriptors)

    def end(self) -> None:
        self._ours.close()
        self._process.wait(STARTED_S)


_lock = threading.Lock()
_started: list[Forking] = []


def _forking() -> Forking:
    with _lock:
        if not _started:
            _started.append(Forking())
        return _started[0]


def end_forking() -> None:
    with _lock:
        while _started:
            _started.pop().end()


# --- in the process that forks -------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Fork whenever it is asked to, and tell each one's pid and, once it has ended, its code."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    reports: dict[int, int] = {}
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            woken.recv(1_000)
            _reap(reports)
        if control in ready:
            message, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 4)
            if not message:
                return
            report = descriptors[-1]
            pid = os.fork()
            if pid == 0:
                for one in (control, woken, waking):
                    one.close()
                for fd in (*reports.values(), report):
                    os.close(fd)
                become(msgspec.json.decode(message, type=Request), descriptors[:3])
            for fd in descriptors[:3]:
                os.close(fd)
            reports[pid] = report
            os.write(report, _report(pid))


def _report(number: int) -> bytes:
    """Always as long: two of them may be read after each other, and not as one."""
    return b"%*d" % (REPORT_BYTES, number)


def _reap(reports: dict[int, int]) -> None:
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        report = reports.pop(pid)
        try:
            os.write(report, _report(os.waitstatus_to_exitcode(status)))
        except BrokenPipeError:
            pass  # Nobody wants to know.
        os.close(report)


def become(request: Request, descriptors: list[int]) -> NoReturn:
    """Be the Python that was asked for, to its end."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, fd in enumerate(descriptors):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request.environ)
    os.chdir(request.cwd)
    os._exit(_ran(request.arguments))


def _ran(arguments: list[str]) -> int:
    kind, program, *rest = arguments
    sys.argv = [program if kind == "-m" else "-c", *rest]
    code = 0
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        if kind == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            exec(program, {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except Exception:  # noqa: BLE001 - the interpreter's last word
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    # They are for its forks. One that comes before a fork can hear it waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    serve(socket.socket(fileno=int(sys.argv[1])))
