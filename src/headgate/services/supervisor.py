"""Runs the roles of `headgate up` as processes of their own and keeps them running.

Each role is started with a pipe as its standard input and ends when that closes, so no role
outlives the supervisor, however that ends. A role that dies is started again with backoff, and that
is said. Stopping goes from the source to the sink: ingest (nothing new), router (settle), gateway,
coordinator; whatever is left below us after that is ended by its process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from headgate.adapters.processes import adopt_orphans, children, end_processes, families_except
from headgate.adapters.role_logs import keep_small
from headgate.decide.operations.supervision import (
    EXIT_OPERATOR,
    RestartPolicy,
    last_words,
    restart_sentence,
)
from headgate.errors import OperatorError
from headgate.tasks import Crew, first_of

READY_TIMEOUT_S = 180.0
STOP_ORDER = ("ingest", "router", "gateway", "coordinator")
STOP_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 5.0
SWEEP_GRACE_S = 3.0
LAST_WORDS_BYTES = 1 << 16
"""The end of a role's log in which its last words are looked for."""
LOOK_AT_LOG_S = 10.0
LOG_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RoleCommand:
    """How a role is started; its standard error goes to `log_file`. It is killed when it takes
    longer than `stop_timeout_s` to stop."""

    name: str
    argv: Sequence[str]
    environ: Mapping[str, str]
    log_file: Path
    stop_timeout_s: float = STOP_TIMEOUT_S
    log_max_bytes: int = LOG_MAX_BYTES
    """Above this a role's log is begun anew, and the former one kept beside it."""
    begins_early: bool = False
    """It has much to do before it needs the coordinator, and waits for that by itself."""


class RoleFailed(OperatorError):
    """A role could not be started and starting it again would not help."""


Say = Callable[[str], None]


class Household:
    """The processes that belong here. Spawning and sweeping exclude each other: a role that was
    just spawned must not be taken for an orphan. What this process had started before is none of
    the household's business."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.role_pids: set[int] = set()
        self._strangers = frozenset(child.pid for child in children())

    async def end_orphans(self) -> None:
        """What a dead role left behind (a JVM, workers) has come to us; it must not linger."""
        async with self.lock:
            left = families_except({*self.role_pids, *self._strangers})
            if left:
                await asyncio.to_thread(end_processes, left, grace_s=SWEEP_GRACE_S)

    async def end_all(self) -> None:
        left = families_except(self._strangers)
        await asyncio.to_thread(end_processes, left, grace_s=SWEEP_GRACE_S)


class RoleProcess:
    """One role: started, watched and started again until told to stop."""

    def __init__(
        self, command: RoleCommand, policy: RestartPolicy, say: Say, household: Household
    ) -> None:
        self.name = command.name
        self.ready = asyncio.Event()
        self.given_up: str | None = None
        self._command = command
        self._policy = policy
        self._say = say
        self._household = household
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._gone_up = False
        self._log_start = 0
        self._last_reason = ""
        self._crew = Crew("supervisor")
        self.task = self._crew.start("role", self._keep_running(), about=command.name, awaited=True)
        self._crew.start("log", self._keep_log_small(), about=command.name)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def stop(self) -> None:
        self._stopping.set()
        if (pid := self.pid) is not None:
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._command.stop_timeout_s):
                await asyncio.wait([self.task])
        except TimeoutError:
            self._say(f"{self.name} didn't end in time and was killed")
            self.kill()
            await asyncio.wait([self.task], timeout=KILL_TIMEOUT_S)

    def kill(self) -> None:
        self._stopping.set()
        if self.pid is not None and self._process is not None:
            self._process.kill()

    async def _keep_running(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            started_s = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            self.ready.clear()
            if code == EXIT_OPERATOR:
                self.given_up = self._last_words() or f"{self.name} can't be started"
                self.ready.set()
                return
            failures = self._policy.failures_after(
                failures=failures, ran_s=time.monotonic() - started_s
            )
            delay_s = self._policy.delay_s(failures=failures)
            self._say_restart(code, delay_s)
            await self._household.end_orphans()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()

    async def _keep_log_small(self) -> None:
        command = self._command
        while not self._stopping.is_set():
            with contextlib.suppress(OSError):  # a log that can't be kept small is still a log
                if await asyncio.to_thread(keep_small, command.log_file, command.log_max_bytes):
                    self._log_start = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AT_LOG_S):
                    await self._stopping.wait()

    def _say_restart(self, code: int, delay_s: float) -> None:
        """What was killed had no time for a reason."""
        reason = self._last_words() if code > 0 else ""
        sentence = restart_sentence(
            ended=_ended(code),
            reason=reason,
            last_reason=self._last_reason,
            delay_s=delay_s,
            log_file=str(self._command.log_file),
        )
        self._last_reason = reason
        self._say(f"{self.name} {sentence}")

    async def _run_once(self) -> int:
        heard, said = os.pipe()
        try:
            process = self._process = await self._spawn(stdout=said)
        finally:
            os.close(said)
        if self._stopping.is_set():
            process.terminate()
        # Beside the wait, not instead of it: what the role started holds its output open too.
        output, transport = await _reader(heard)
        listening = self._crew.start("output", self._listen(output), about=self.name)
        try:
            return await process.wait()
        finally:
            listening.cancel()
            transport.close()
            self._household.role_pids.discard(process.pid)
            if process.stdin is not None:
                process.stdin.close()

    async def _listen(self, output: asyncio.StreamReader) -> None:
        async for line in output:
            if line.startswith(b"ready"):
                if self._gone_up:
                    self._say(f"{self.name} is back")
                self._gone_up = True
                self.ready.set()

    async def _spawn(self, *, stdout: int) -> asyncio.subprocess.Process:
        command = self._command
        async with self._household.lock:
            with command.log_file.open("ab") as log_file:
                self._log_start = log_file.tell()
                process = await asyncio.create_subprocess_exec(
                    *command.argv,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=stdout,
                    stderr=log_file,
                    env=dict(command.environ),
                    # A Ctrl-C in the terminal is for the supervisor, which stops roles in order.
                    start_new_session=True,
                )
            self._household.role_pids.add(process.pid)
            return process

    def _last_words(self) -> str:
        """The sentence the role left in its log before it ended; none of an earlier run."""
        with contextlib.suppress(OSError), self._command.log_file.open("rb") as log_file:
            log_file.seek(max(self._log_start, log_file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            return last_words(log_file.read().decode(errors="replace"))
        return ""


class Supervisor:
    def __init__(self, commands: Sequence[RoleCommand], say: Say) -> None:
        self._commands = {command.name: command for command in commands}
        self._say = say
        self._roles: dict[str, RoleProcess] = {}
        self._household = Household()

    @property
    def pids(self) -> dict[str, int | None]:
        return {name: self._roles[name].pid for name in self._commands if name in self._roles}

    @property
    def serving(self) -> dict[str, int | None]:
        """The pid of each role that serves; None for one that is being started again."""
        roles = self._roles
        return {n: roles[n].pid if roles[n].ready.is_set() else None for n in roles}

    async def start(self, progress: Say = lambda _: None) -> None:
        """Start every role and return when all are ready; the coordinator comes first, along with
        what begins early."""
        adopt_orphans()
        first = [n for n, c in self._commands.items() if c.begins_early or n == "coordinator"]
        self._begin(first)
        if "coordinator" in self._roles:
            await self._until_ready("coordinator", progress)
        self._begin(name for name in self._commands if name not in first)
        await asyncio.gather(
            *(self._until_ready(name, progress) for name in self._roles if name != "coordinator")
        )

    def _begin(self, names: Iterable[str]) -> None:
        for name in names:
            command = self._commands[name]
            self._roles[name] = RoleProcess(command, RestartPolicy(), self._say, self._household)

    async def _until_ready(self, name: str, progress: Say) -> None:
        role = self._roles[name]
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await first_of(role.ready.wait(), asyncio.wait([role.task]))
        except TimeoutError:
            log_file = self._commands[name].log_file
            raise RoleFailed(
                f"{name} was not ready after {READY_TIMEOUT_S:.0f} s; see {log_file}"
            ) from None
        self._check(role)
        progress(name)

    async def watch(self) -> None:
        """Returns never; raises when a role can't be started any more."""
        await asyncio.wait(
            [role.task for role in self._roles.values()], return_when=asyncio.FIRST_COMPLETED
        )
        for role in self._roles.values():
            self._check(role)

    async def stop(self) -> None:
        for name in STOP_ORDER:
            if name in self._roles:
                await self._roles[name].stop()
        await self._household.end_all()

    def hurry(self) -> None:
        """Don't wait any longer for what is in flight; a `stop` under way ends soon."""
        for role in self._roles.values():
            role.kill()

    def _check(self, role: RoleProcess) -> None:
        if role.given_up is not None:
            raise RoleFailed(role.given_up)
        if role.task.done() and not role.task.cancelled():
            role.task.result()


async def _reader(descriptor: int) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """Reads a pipe; closing the transport closes it, even if another process holds its other
    end."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    return reader, transport


def _ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
