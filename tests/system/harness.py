"""`headgate up` as a user runs it: a process with free ports and a data folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil

from tests.forks import TextFork
from tests.waiting import has_ended

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 90.0
FIRST_LOOK_S, LATER_LOOKS_S = 0.02, 0.2

HEADGATE = (sys.executable, "-m", "headgate")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without any setting of Headgate's, plus `extra`."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADGATE_")}
    return {
        **inherited,
        "HEADGATE_PUBLIC__PORT": "0",
        "HEADGATE_PUBLIC__WS_PORT": "0",
        "HEADGATE_COORDINATOR__HTTP_PORT": "0",
        # The set-up has made it. Where it hasn't, a test is no place to begin with it.
        "HEADGATE_ROUTER__CLASS_ARCHIVE": "use",
        **(extra or {}),
    }


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait for something another process does; there is no signal to wait for instead.

    Looks less often the longer it takes: to ask costs those who are waited for."""
    deadline_s = time.monotonic() + timeout_s
    pause, pause_s = threading.Event(), FIRST_LOOK_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s")
        pause.wait(pause_s)
        pause_s = min(1.25 * pause_s, LATER_LOOKS_S)


def create_topic(url: str, topic: str, partitions: int = 1) -> None:
    """As `headgate topic create` does, for tests of something else: waits while nobody leads."""

    def is_created() -> bool:
        try:
            _ask(url, "/v1/topics", "POST", {"name": topic, "partitions": partitions})
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return False
            raise
        return True

    until(is_created, f"{topic} is created")


def knows_topic(url: str, topic: str) -> bool:
    """Whether the gateway there has heard of it: one that is about to connect again may be late."""
    try:
        _ask(url, f"/v1/topics/{topic}/records?limit=1", "GET")
    except HTTPError:
        return False
    return True


def delete_topic(url: str, topic: str) -> None:
    _ask(url, f"/v1/topics/{topic}", "DELETE")


def repartition_topic(url: str, topic: str, partitions: int) -> None:
    """As `headgate topic repartition` begins it."""
    _ask(url, f"/v1/topics/{topic}/repartition", "POST", {"partitions": partitions})


def _ask(url: str, path: str, method: str, body: Mapping[str, object] | None = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    with urlopen(Request(url + path, data, headers, method=method), timeout=30):
        pass


class Lines:
    """Reads a pipe to its end in a thread, so that the writer never blocks."""

    def __init__(self, pipe: Any) -> None:
        self.lines: list[str] = []
        self._read_at_s: list[float] = []
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe: Any) -> None:
        with pipe:
            for line in pipe:
                self._read_at_s.append(time.monotonic())
                self.lines.append(line.rstrip("\n"))

    def timed(self, first: int = 0) -> list[tuple[str, float]]:
        """Each line, from number `first` on, with when it was read."""
        return list(zip(self.lines[first:], self._read_at_s[first:], strict=False))

    def finish(self) -> list[str]:
        self._thread.join(10)
        return self.lines


class Command:
    """A running `headgate` command with its output collected.

    Forked from one that has imported it, unless it has to begin as a user's does (`fresh`).
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        cwd: Path | None = None,
        *,
        program: Sequence[str] = HEADGATE,
        fresh: bool = False,
    ) -> None:
        python, *rest = (*program, *arguments)
        self.process = (
            subprocess.Popen(
                [python, *rest],
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=cwd,
            )
            if fresh
            else TextFork(rest, environ, cwd)
        )
        self.out = Lines(self.process.stdout)
        self.err = Lines(self.process.stderr)

    def wait(self, timeout_s: float = COMMAND_TIMEOUT_S) -> int:
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(
                f"still running after {timeout_s} s; {len(self.out.lines)} lines out, "
                f"last errors: {self.err.lines[-3:]}"
            ) from None
        self._close()
        return code

    def kill(self) -> None:
        """Its output isn't waited for: what it has started may be frozen, and hold on to it."""
        self.process.kill()
        self.process.wait(10)
        self._close_stdin()

    def _close_stdin(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def _close(self) -> None:
        self._close_stdin()
        self.out.finish()
        self.err.finish()

    def until_said(self, text: str, timeout_s: float = 60.0) -> None:
        """A command that doesn't say so is ended: whoever waits has nothing to stop."""

        def said() -> bool:
            if self.process.poll() is not None and not any(text in x for x in self.err.finish()):
                raise AssertionError(f"ended without {text!r}: {self.err.lines}")
            return any(text in line for line in self.err.lines)

        try:
            until(said, f"stderr says {text!r}", timeout_s)
        except AssertionError:
            self.stop()
            raise

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self._close()


class System:
    """One `headgate up`; use it as a context manager."""

    def __init__(self, data: Path, settings: Mapping[str, str] | None = None) -> None:
        self.data = data
        self._environ = environment(settings)
        self._up: Command | None = None
        self.url = ""
        self._commands: list[Command] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._commands:
            command.stop()
        self.stop()

    def start(self) -> None:
        self._up = up = Command(["up", "--data", str(self.data)], self._environ, fresh=True)

        def ready() -> bool:
            if up.process.poll() is not None:
                raise AssertionError(f"headgate up ended: {up.err.finish()}")
            return any(line.startswith("ready ") for line in up.out.lines)

        try:
            until(ready, "headgate up is ready", READY_TIMEOUT_S)
        except AssertionError:
            up.stop()
            raise
        self.url = up.out.lines[0].removeprefix("ready ")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        """Ends the system and returns its exit code."""
        up, self._up = self._up, None
        if up is None:
            return None
        up.process.send_signal(number)
        return up.wait(STOP_TIMEOUT_S)

    def stops_whole(self, number: signal.Signals) -> None:
        """Ends the system, which must say that it ended well, and leave no process behind."""
        family = psutil.Process(self.pid).children(recursive=True)
        assert len(family) > 5
        assert self.stop(number) == 0
        assert [child for child in family if not has_ended(child)] == []

    @property
    def runs(self) -> bool:
        return self._up is not None

    @property
    def pid(self) -> int:
        assert self._up is not None
        return self._up.process.pid

    @property
    def said(self) -> list[str]:
        assert self._up is not None
        return self._up.err.lines

    # --- commands --------------------------------------------------------------------------------

    def command(self, *arguments: str) -> Command:
        command = Command(arguments, {**self._environ, "HEADGATE_URL": self.url})
        self._commands.append(command)
        return command

    def run(self, *arguments: str, stdin: str = "") -> Command:
        """Runs a command to its end, which must be a good one."""
        command = self.command(*arguments)
        assert command.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            command.process.stdin.write(stdin)
            command.process.stdin.close()
        code = command.wait()
        assert code == 0, (arguments, code, command.err.lines)
        return command

    def subscribe(self, *arguments: str) -> Command:
        """A subscriber that has been told that it misses nothing from now on."""
        command = self.command("subscribe", *arguments)
        command.until_said("subscribed", 60.0)
        return command

    def produce(self, topic: str, documents: Sequence[Mapping[str, object]]) -> None:
        lines = "".join(json.dumps(document) + "\n" for document in documents)
        self.run("produce", topic, "--key", "icao", stdin=lines)

    def status(self) -> dict[str, Any]:
        with urlopen(f"{self.url}/v1/status", timeout=10) as response:
            status: dict[str, Any] = json.load(response)
            return status

    # --- processes -------------------------------------------------------------------------------

    def role_pid(self, role: str) -> int:
        pid: int = next(n["pid"] for n in self.status()["nodes"] if n["role"] == role)
        return pid

    def jvm_pid(self) -> int:
        router = psutil.Process(self.role_pid("router"))
        return next(c.pid for c in router.children(recursive=True) if "java" in c.name())

    def router_tree(self) -> list[psutil.Process]:
        router = psutil.Process(self.role_pid("router"))
        return [router, *router.children(recursive=True)]

    def until_lanes(self, count: int, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        until(lambda: len(self._lanes()) == count, f"{count} lanes run", timeout_s)
        return self._lanes()

    def _lanes(self) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError):
            lanes: list[dict[str, Any]] = self.status()["lanes"]
            return lanes
        return []


@contextlib.contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """SIGSTOP while the block runs."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.resume()
