"""What a simulated process must not ask the real machine for, and how that is noticed.

While `watched` lasts, whatever reads a real clock, draws from real chance, starts a thread or a
process, sleeps or opens a socket in a process's turn is an `Escape` of the run, by name. Reading
files is let be: that is how modules are imported.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from tests.sim.scheduler import Process, Scheduler

CLOCKS: Final = [
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "thread_time",
    "sleep",
]
CHANCES: Final = [
    "choice",
    "choices",
    "getrandbits",
    "randbytes",
    "randint",
    "random",
    "randrange",
    "sample",
    "shuffle",
    "uniform",
]
AUDITED: Final = frozenset(("os.fork", "os.posix_spawn", "socket.__new__", "subprocess.Popen"))

LET_BE: Final = ("prometheus_client.",)
"""Modules that note when a metric was made, which nobody in a run reads."""

_watching: list[Scheduler] = []
"""The run that is watched: what Python is told to audit, it audits for ever."""


@contextmanager
def watched(scheduler: Scheduler) -> Iterator[None]:
    _audit_once()
    with ExitStack() as stack:
        for owner, name in _forbidden():
            replacement = _told(scheduler, f"{owner.__name__}.{name}", getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, replacement))
        stack.enter_context(mock.patch.object(os, "sched_yield", _nobody_goes_first))
        _watching.append(scheduler)
        try:
            yield
        finally:
            _watching.pop()


def _forbidden() -> list[tuple[Any, str]]:
    return [
        *((time, name) for name in CLOCKS),
        *((random, name) for name in CHANCES),
        (os, "urandom"),
        (threading.Thread, "start"),
    ]


def _nobody_goes_first() -> None:
    """Whose turn it is, is the scheduler's affair."""


def _told(scheduler: Scheduler, what: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def asked(*args: Any, **options: Any) -> Any:
        _check(scheduler, what)
        return real(*args, **options)

    return asked


def _check(scheduler: Scheduler, what: str) -> None:
    process = asyncio._get_running_loop()
    asker = sys._getframe(2).f_globals.get("__name__", "")
    if isinstance(process, Process) and not asker.startswith(LET_BE):
        raise scheduler.escaped(f"{process.name} used {what}")


def _audit(event: str, _arguments: tuple[object, ...]) -> None:
    if event in AUDITED and _watching:
        _check(_watching[-1], event)


_audited: list[bool] = []


def _audit_once() -> None:
    if not _audited:
        _audited.append(True)
        sys.addaudithook(_audit)
