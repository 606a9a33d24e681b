"""Waits for partitions to change hands, and shows how far that is.

On a terminal a bar, anywhere else a line whenever something has moved; all on standard error. A
coordinator that is away meanwhile is waited for, because moves outlive it. Always ends: when
nothing is left, or at the deadline.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Annotated, Self

from headgate.cli.command_line import Option
from headgate.cli.output import counting_bar, say
from headgate.cli.views.tables import plural
from headgate.client.http import HttpClient
from headgate.decide.durations import parse_duration_ms
from headgate.errors import NotNow, Timeout
from headgate.model.api import Status

POLL_S = 0.5

WaitOption = Annotated[bool, Option("--wait", help="Wait until everything has moved.")]
TimeoutOption = Annotated[
    str,
    Option("--timeout", metavar="TIME", help="How long to wait at most, such as 30s or 5m."),
]
DEFAULT_TIMEOUT = "2m"


class Progress:
    """`total` partitions move; `at` says how many are still left."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._left = total
        self._watched = sys.stderr.isatty()
        self._bar = counting_bar("moving", remaining=False)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def at(self, left: int) -> None:
        if left > self._total:
            self._total = left
        if left != self._left and not self._watched:
            say(f"moved {self._total - left:,} of {plural(self._total, 'partition')}")
        self._left = left
        self._bar.update(self._task, completed=self._total - left, total=self._total)


async def none_left(
    client: HttpClient, left: Callable[[Status], int], *, total: int, timeout_s: float
) -> None:
    """Wait until `left` finds nothing in the status; raises Timeout when that takes too long."""
    deadline_s = time.monotonic() + timeout_s
    remaining, trouble = total, ""
    with Progress(total) as progress:
        while remaining:
            try:
                remaining = left(await client.get("/v1/status", Status))
            except NotNow as error:
                trouble = f" ({error.message})"
            else:
                trouble = ""
                progress.at(remaining)
            if remaining and time.monotonic() >= deadline_s:
                raise Timeout(
                    f"{plural(remaining, 'partition')} still to move after {timeout_s:g} s"
                    f"{trouble}: see `headgate status`, or wait longer with --timeout"
                )
            if remaining:
                await asyncio.sleep(POLL_S)


def seconds(text: str) -> float:
    return parse_duration_ms(text) / 1_000
