"""A real server as a test sees it: one process that can be started, stopped, killed and restarted.

Invariant: ports and data belong to the object, not to the process, so a restart finds both again.
`start` returns once the server answers a real request, and every wait has a bound. Processes are
ended by their ids, never by name.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

import psutil

from headgate.adapters import processes

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
PROBE_INTERVAL_S = 0.05
LOG_TAIL_CHARS = 2_000
BECOME = (
    "import os, sys; _, user_id, *command = sys.argv; "
    "os.setgroups([]); os.setuid(int(user_id)); os.execv(command[0], command)"
)
"""A program that becomes another one, under another account."""


def free_port() -> int:
    """A loopback port that nobody listens on and that no process of this run, or of another one,
    is given while this one lives: also while a killed server is being restarted."""
    return processes.free_port("127.0.0.1")


def under(user_id: int | None, command: list[str]) -> list[str]:
    """The command under that account, which it takes on by itself. With Popen's own `user`, Python
    forks, and gRPC's threads of this process may abort the child before the program begins."""
    if user_id is None:
        return command
    return [sys.executable, "-I", "-c", BECOME, str(user_id), *command]


class ServerFailed(Exception):
    """A server ended or kept silent; the message carries the end of its log."""


class Server(ABC):
    """One server process with a folder of its own, which `close` removes."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"headgate-{self.name}-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments; the same for every start."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether a real request succeeds now; errors of a server that isn't up yet are False."""

    def prepare(self) -> None:  # noqa: B027 - most servers need nothing
        """What has to happen once, before the first start."""

    def user_id(self) -> int | None:
        """The account the server runs as; None is the one that runs the tests."""
        return None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> Self:
        """Start it and wait until it answers."""
        self.spawn()
        self.await_ready()
        return self

    def spawn(self) -> None:
        """Start the process without waiting: several of them can come up together."""
        assert self._process is None, f"{self.name} runs already"
        if not self._prepared:
            self.prepare()
            self._prepared = True
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                under(self.user_id(), self.command()),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C at the terminal is for the test run, which then ends its servers itself.
                start_new_session=True,
            )

    def await_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.answers():
            try:
                # Between two probes, watch for an early end instead of sleeping.
                code = self._running().wait(PROBE_INTERVAL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                self.kill()
                raise ServerFailed(self._story(f"no answer in {READY_TIMEOUT_S:.0f} s")) from None
            self._process = None
            raise ServerFailed(self._story(f"ended with code {code}"))

    def stop(self) -> None:
        """Ask it to end, and kill it when it doesn't in time; stopping twice is harmless."""
        if self._process is None:
            return
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End it and its children as a crash would, and wait until they are gone."""
        process = self._running()
        family = [
            psutil.Process(process.pid),
            *psutil.Process(process.pid).children(recursive=True),
        ]
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                pass  # it went with its parent
        process.wait(STOP_TIMEOUT_S)
        psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
        self._process = None

    def restart(self) -> Self:
        """The same ports and data again, after a `kill` or instead of `stop` and `start`."""
        self.stop()
        return self.start()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} doesn't run"
        return self._process

    def _story(self, what: str) -> str:
        return f"{self.name}: {what}\n{self.log.read_text(errors='replace')[-LOG_TAIL_CHARS:]}"
