"""Waits for a repartition, and shows how far it is.

On a terminal a bar per phase, anywhere else a line whenever something has changed; all on standard
error. A coordinator that is away meanwhile is waited for, because the next one goes on with it.
Always ends: when it is finalized or given up, or at the deadline. Ctrl-C ends only the waiting.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from headgate.cli.following import POLL_S
from headgate.cli.output import say
from headgate.cli.views.repartition import given_up_sentence, standing
from headgate.cli.views.tables import plural
from headgate.client.http import HttpClient
from headgate.errors import HeadgateError, NotNow, Timeout
from headgate.model.api import RepartitionStatus, Status, TopicInfo

PHASES = ("announced", "sealing", "fenced", "draining", "drained")
BEFORE_THE_FENCE = PHASES[:2]
BAR_WIDTH = 24


class _Bars(Progress):
    """With a line below them, folded where it doesn't fit."""

    note = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.note, style="dim")


class PhaseBars:
    """A bar for each phase that has begun. That of draining knows how much is left."""

    def __init__(self, console: Console | None = None) -> None:
        self._watched = sys.stderr.isatty() if console is None else console.is_terminal
        self._bars = _Bars(
            TextColumn("{task.description:<9}"),
            BarColumn(BAR_WIDTH),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console or Console(stderr=True),
            disable=not self._watched,
            transient=True,
        )
        self._tasks: list[TaskID] = []
        self._most = 0
        self._said = ""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def at(self, now: RepartitionStatus) -> None:
        self._begun(now)
        self._most = max(self._most, now.backlog)
        left = f"{plural(now.backlog, 'record')} left" if now.backlog else ""
        is_counted = now.phase == "draining" and self._most > 0
        self._bars.update(
            self._tasks[-1],
            total=self._most if is_counted else None,
            completed=self._most - now.backlog if is_counted else 0,
            left=left,
        )
        self.tell(now.waits_for)
        changed = f"{now.phase} {now.waits_for}"
        if changed != self._said and not self._watched:
            say(standing(now))
        self._said = changed

    def tell(self, note: str) -> None:
        """The line below the bars."""
        self._bars.note = note
        self._bars.refresh()

    def _begun(self, now: RepartitionStatus) -> None:
        for phase in PHASES[len(self._tasks) : PHASES.index(now.phase) + 1]:
            if self._tasks:
                self._bars.update(self._tasks[-1], total=1, completed=1, left="")
            self._tasks.append(self._bars.add_task(phase, total=None, left=""))


async def finalized(client: HttpClient, name: str, to: int, *, timeout_s: float) -> TopicInfo:
    """Wait until the topic is at `to` partitions and nothing of the former ones is left to do.

    Raises where it was given up, or the topic was deleted, or it takes too long."""
    try:
        return await _followed(client, name, to, timeout_s)
    except asyncio.CancelledError:
        say(f"it goes on by itself: `headgate topic describe {name}` shows how far it is")
        raise


async def _followed(client: HttpClient, name: str, to: int, timeout_s: float) -> TopicInfo:
    deadline_s = time.monotonic() + timeout_s
    goal: int | None = None  # the version that it brings
    where = "begun"
    with PhaseBars() as bars:
        while True:
            trouble = ""
            try:
                status = await client.get("/v1/status", Status)
            except NotNow as error:
                trouble = f" ({error.message})"
                bars.tell(error.message)
            else:
                info = _topic(status, name)
                if info is not None:
                    under_way = info.repartition
                    if under_way is None or under_way.to != to:
                        return _ended(info, to, goal)
                    goal = info.version + (under_way.phase in BEFORE_THE_FENCE)
                    where = standing(under_way)
                    bars.at(under_way)
            if time.monotonic() >= deadline_s:
                raise Timeout(
                    f"{name} is not at {plural(to, 'partition')} after {timeout_s:g} s "
                    f"({where}){trouble}; it goes on by itself: `headgate topic describe {name}` "
                    "shows how far it is"
                )
            await asyncio.sleep(POLL_S)


def _topic(status: Status, name: str) -> TopicInfo | None:
    """None where a coordinator that is still learning doesn't know it yet."""
    info = next((topic for topic in status.topics if topic.name == name), None)
    if info is None and not status.learning:
        raise HeadgateError(f"{name} was deleted while it was repartitioned")
    return info


def _ended(info: TopicInfo, to: int, goal: int | None) -> TopicInfo:
    """`goal` is None where nobody has seen it under way: then the count tells."""
    is_done = info.partitions == to if goal is None else info.version >= goal
    if not is_done:
        raise HeadgateError(given_up_sentence(info, to))
    return info
