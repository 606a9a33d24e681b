"""Three consumers of one group, each a process, and what must hold for all of them together.

Every event is processed at least once, the first time in its key's order; and a key has one
consumer at a time. Their lines have a time that all processes of a machine share, and are judged in
its order once they are old enough for nobody to come in between.

Two consumers at once are seen by the epochs of their targets: when the next epoch has begun to
work, whoever has a former one may finish what was in hand, 100 events of a target, and no more.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import psutil

from tests.system.cluster import Cluster
from tests.system.harness import Command, environment
from tests.system.soaking.flood import Violation
from tests.system.soaking.judge import Account

CONSUMERS: Final = ("consumer-1", "consumer-2", "consumer-3")
SETTLED_S: Final = 2.0
"""What is older than that has been printed by everybody who isn't frozen."""
IN_HAND_MAX: Final = 100
"""Events of a target that were handed out and aren't acknowledged (docs/protocol.md)."""


class Work(NamedTuple):
    """One event that a consumer began with."""

    at_ns: int
    consumer: str
    process: int
    key: str
    number: int
    partition: int
    seq: int
    target: int
    epoch: int


class GroupJudge:
    """Takes what all of them did, in the order of time."""

    def __init__(self, account: Account) -> None:
        self.overlaps = 0
        self._account = account
        self._owners: dict[int, tuple[int, str]] = {}
        self._late: Counter[tuple[int, int]] = Counter()
        self._begun: dict[str, Work] = {}

    def judge(self, work: Work) -> None:
        self._judge_owner(work)
        before = self._begun.get(work.key)
        if (
            before is not None
            and (before.process, before.epoch) == (work.process, work.epoch)
            and before.number >= work.number
        ):
            raise Violation(f"{self._account.name}: {work} came after {before}")
        self._begun[work.key] = work
        at_s = work.at_ns / 1e9
        self._account.take(work.key, work.number, (work.partition, work.seq), at_s)

    def _judge_owner(self, work: Work) -> None:
        epoch, owner = self._owners.get(work.target, (0, ""))
        if work.epoch > epoch:
            self._owners[work.target] = (work.epoch, work.consumer)
        elif work.epoch == epoch and work.consumer != owner:
            raise Violation(
                f"{self._account.name}: {owner} has that target under that epoch: {work}"
            )
        elif work.epoch < epoch and work.consumer != owner:
            self.overlaps += 1
            self._late[work.target, work.epoch] += 1
            if self._late[work.target, work.epoch] > IN_HAND_MAX:
                raise Violation(f"{self._account.name}: {owner} has that target since long: {work}")


class _Process:
    def __init__(self, consumer: str, command: Command) -> None:
        self.consumer = consumer
        self.command = command
        self._taken = 0

    def take(self) -> list[Work]:
        """What it printed since it was asked last."""
        lines = self.command.out.lines[self._taken :]
        self._taken += len(lines)
        return [self._work(line) for line in lines]

    def _work(self, line: str) -> Work:
        at_ns, key, number, *where = line.split()
        partition, seq, target, epoch = map(int, where)
        return Work(
            *(int(at_ns), self.consumer, self.command.process.pid, key),
            *(int(number), partition, seq, target, epoch),
        )


class Group:
    """Use it as a context manager; `account` is that of all three."""

    def __init__(self, cluster: Cluster, topic: str, account: Account) -> None:
        self.name = account.name
        self.account = account
        self.judge = GroupJudge(account)
        self._cluster = cluster
        self._topic = topic
        self._running: dict[str, _Process] = {}
        self._former: list[_Process] = []
        self._unjudged: list[Work] = []
        self._settles_at_s = 0.0

    def __enter__(self) -> Self:
        try:
            for name in CONSUMERS:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.command.stop()

    def finish(self) -> None:
        """Nothing more is sent, and everything came: they end, and all they did is judged."""
        self.__exit__()
        self._settles_at_s = 0.0
        self.look()
        self._judge_until(time.monotonic_ns())

    @property
    def count(self) -> int:
        return self.account.count

    def start(self, name: str) -> None:
        command = Command(
            [self._cluster.url, self._topic, name, "0", "earliest"],
            environment(),
            Path(__file__).parents[3],
            program=(sys.executable, "-m", "tests.system.consumer_process"),
        )
        self._running[name] = _Process(name, command)
        command.until_said("joined", 60.0)

    def kill(self, name: str) -> None:
        killed = self._running.pop(name)
        killed.command.kill()
        self._former.append(killed)

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        frozen = psutil.Process(self._running[name].command.process.pid)
        frozen.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            frozen.send_signal(signal.SIGCONT)
            self._settles_at_s = time.monotonic() + SETTLED_S

    def said(self) -> list[str]:
        """What everybody printed, for whoever looks for what went wrong."""
        return [
            f"{process.consumer}[{process.command.process.pid}] {line}"
            for process in (*self._former, *self._running.values())
            for line in (*process.command.err.lines, *process.command.out.lines)
        ]

    # --- judging -----------------------------------------------------------------------------

    def look(self) -> None:
        self._unjudged += [
            work for process in (*self._running.values(), *self._former) for work in process.take()
        ]
        self._unjudged.sort()
        now_s = time.monotonic()
        if now_s < self._settles_at_s:
            return
        self._judge_until(int((now_s - SETTLED_S) * 1e9))

    def is_complete(self, count: int) -> bool:
        self.look()
        for name, process in self._running.items():
            if process.command.process.poll() is not None:
                raise Violation(f"{name} ended: {process.command.err.finish()[-3:]}")
        return self.count >= count

    def _judge_until(self, at_ns: int) -> None:
        settled = [work for work in self._unjudged if work.at_ns < at_ns]
        del self._unjudged[: len(settled)]
        for work in settled:
            self.judge.judge(work)
