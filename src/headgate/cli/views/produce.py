"""How far `headgate produce` is, shown on a terminal, and what became of its lines.

Invariant: every line that was sent is counted once, as acknowledged or as failed, and the failed
ones are named.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from headgate.cli.output import say
from headgate.cli.reading.json_lines import NumberedEvent
from headgate.cli.reading.line_source import LineSource
from headgate.client.producing.outgoing import Outcome
from headgate.errors import SAME_IDS_AGAIN, CallerError, HeadgateError, NotNow, OutcomeUnknown

RANGES_SHOWN_MAX = 20
STILL_S = 1.0
"""From then on a run in which nothing happens says what it waits for."""
WAITS_S = 3.0
"""From then on it says so where there is no bar."""
BAR_WIDTH = 16
"""Leaves room for what is waited for, where a terminal has 80 columns."""


def _progress(*columns: ProgressColumn, is_typed: bool = False) -> Progress:
    """On a terminal, and gone from it at the end; nothing anywhere else, nor where somebody types:
    it would run into that."""
    return Progress(
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=is_typed or not sys.stderr.isatty(),
        transient=True,
    )


class Checking:
    """How much of the inputs has been looked at, in bytes as they lie on the disk."""

    def __init__(self, sources: Sequence[LineSource]) -> None:
        sizes = [source.size_bytes for source in sources]
        self._progress = _progress(TextColumn("checking"), BarColumn(), DownloadColumn())
        self._task = self._progress.add_task("", total=sum(size or 0 for size in sizes))
        self._before = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def at(self, source: LineSource) -> None:
        self._progress.update(self._task, completed=self._before + source.bytes_read)

    def done(self, source: LineSource) -> None:
        self._before += source.bytes_read


class _Pace(ProgressColumn):
    """Rendered at every refresh, so that it changes also while nothing happens."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def render(self, task: Task) -> Text:
        return Text(self._tally.pace(task.speed or 0.0))


class Tally:
    def __init__(
        self,
        events: int | None,
        *,
        is_typed: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`events` is how many there are in all inputs, where that is known; `is_typed`: somebody
        types them."""
        self.acknowledged = 0
        self.failures: list[tuple[NumberedEvent, HeadgateError]] = []
        self._sent = 0
        self._now_s = now_s
        self._started_s = self._moved_s = now_s()
        self._progress = _progress(
            TextColumn("producing"),
            BarColumn(BAR_WIDTH),
            MofNCompleteColumn(),
            _Pace(self),
            TextColumn("failed {task.fields[failed]}"),
            is_typed=is_typed,
        )
        self._task = self._progress.add_task("", total=events, failed=0)
        self._progress.start()

    @property
    def failed(self) -> int:
        return len(self.failures)

    def sending(self, batch: Sequence[NumberedEvent]) -> None:
        self._sent += len(batch)
        self._moved_s = self._now_s()

    def pace(self, per_s: float) -> str:
        """How fast events are produced, or what they wait for."""
        if self._now_s() - self._moved_s < STILL_S:
            return f"{per_s:,.0f}/s"
        answered = self.acknowledged + self.failed
        return "waiting for answers" if self._sent > answered else "waiting for input"

    async def tell_waits(self, timeout_s: float) -> None:
        """Say when nothing has been answered for a while, and when it goes on; on a terminal that
        is part of the bar. Until it is cancelled."""
        told = False
        while self._progress.disable:
            await asyncio.sleep(STILL_S)
            still_s = self._now_s() - self._moved_s
            waits = self._sent > self.acknowledged + self.failed and still_s >= WAITS_S
            if waits and not told:
                say(f"headgate: no answer for {still_s:.0f} s; waiting for up to {timeout_s:g} s")
            elif told and not waits:
                say("headgate: it goes on")
            told = waits

    def say_how_to_go_on(self, run: str) -> None:
        """Where something failed that may succeed later; after `name_failures`."""
        later = [one for one, error in self.failures if isinstance(error, NotNow)]
        if not later:
            return
        first = min(later, key=lambda one: (one.origin, one.line))
        inputs = f" for the inputs from {first.origin.name} on" if first.origin.number else ""
        say(
            f"headgate: to go on, run the same command{inputs} with `--from-line {first.line} "
            f"--run {run}`; within half an hour, nothing that was written is written again"
        )

    def count(self, batch: Sequence[NumberedEvent], outcomes: Sequence[Outcome]) -> None:
        self._moved_s = self._now_s()
        named: dict[int, HeadgateError] = {}
        for numbered, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, HeadgateError):
                # What failed together has one object for its error, which is about one line.
                error = named.setdefault(id(outcome), _naming_the_line(outcome, batch))
                self.failures.append((numbered, error))
            else:
                self.acknowledged += 1
        self._progress.update(
            self._task,
            completed=self.acknowledged + self.failed,
            failed=self.failed,
        )

    @property
    def per_s(self) -> float:
        """Acknowledged lines per second since the start."""
        return self.acknowledged / max(self._now_s() - self._started_s, 0.001)

    def close(self) -> None:
        self._progress.stop()

    def line(self) -> str:
        """The whole run in one line."""
        rate = f" ({self.per_s:,.0f}/s)" if self.acknowledged else ""
        return f"acknowledged {self.acknowledged}, failed {self.failed}{rate}"

    def written_sentence(self) -> str:
        if self.acknowledged == 0:
            return "nothing was written"
        plural = "line was" if self.acknowledged == 1 else "lines were"
        return f"{self.acknowledged} earlier {plural} written"

    def name_failures(self, topic: str) -> None:
        """Say which lines were not acknowledged, and why."""
        self.failures.sort(key=lambda failure: (failure[0].origin, failure[0].line))
        for (origin, reason), failures in groupby(
            self.failures, key=lambda failure: (failure[0].origin, reason_of(failure[1], topic))
        ):
            lines = origin.of(line_ranges(event.line for event, _ in failures))
            is_said = f"of {lines} " in reason
            say(f"headgate: {reason}" if is_said else f"headgate: {lines}: {reason}")

    def raise_failures(self) -> None:
        """Raises the error that stands for all lines that were not acknowledged, if there are."""
        if self.failures:
            raise self._verdict()

    def _verdict(self) -> HeadgateError:
        caller_errors = [error for _, error in self.failures if isinstance(error, CallerError)]
        kind = type(caller_errors[0]) if caller_errors else HeadgateError
        return kind(
            f"{self.failed} of {self.failed + self.acknowledged} lines that were sent were not "
            "acknowledged, see above"
        )


def reason_of(error: HeadgateError, topic: str) -> str:
    """Why a line was not acknowledged; where it may have been written, how to see whether it was:
    nobody can send a line with the same event id again from here."""
    if not isinstance(error, OutcomeUnknown):
        return error.message
    reason = error.message.removesuffix(SAME_IDS_AGAIN).rstrip(":; ")
    return f"{reason}; it may have been written: `headgate subscribe {topic} --from earliest` shows"


def _naming_the_line(error: HeadgateError, batch: Sequence[NumberedEvent]) -> HeadgateError:
    """The same error, but about a line of the input where it's about an event of its batch."""
    index = error.details.get("index")
    if not isinstance(index, int) or not 0 <= index < len(batch):
        return error
    message = error.message.replace(f"event {index}", str(batch[index]))
    return type(error)(message, **error.details)


def line_ranges(lines: Iterable[int]) -> str:
    """`line 3`, or `lines 1-4, 7`."""
    ranges: list[tuple[int, int]] = []
    for line in lines:
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:RANGES_SHOWN_MAX]]
    more = f" and {len(ranges) - RANGES_SHOWN_MAX} more" if len(ranges) > RANGES_SHOWN_MAX else ""
    single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"{'line' if single else 'lines'} {', '.join(shown)}{more}"
