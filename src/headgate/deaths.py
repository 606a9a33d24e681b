"""What has died in this process and should not have: tasks, threads and callbacks.

Invariant: whatever is noted here is in the log, with its traceback, and in what /health and
/metrics of the role show. A process runs one role, so its dead are kept in one place: a store five
layers down need not be handed the way to /health, and can't forget to use it. `headgate.tasks`
notes them; hardly any other code should have to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from headgate.errors import HeadgateError

SHOWN_S: Final = 60.0
"""How long /health tells of a task that died and was started again, or that others don't need."""
ERROR_MAX: Final = 200


class Death(NamedTuple):
    """The last one of a task. A `lasting` one is the reason why this process is about to end."""

    error: str
    at_s: float
    lasting: bool


class Deaths:
    """What has died in this process, by the names of the tasks, of which there are few."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()  # threads die here too
        self._counts: Counter[str] = Counter()
        self._last: dict[str, Death] = {}

    def note(
        self, task: str, error: BaseException, *, about: str = "", lasting: bool = False
    ) -> None:
        said = str(error) if isinstance(error, HeadgateError) else repr(error)
        with self._lock:
            self._counts[task] += 1
            self._last[task] = Death(said[:ERROR_MAX], self._now_s(), lasting)
        log_error("TASK_DIED", error, task=task, about=about)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def reasons(self) -> list[str]:
        """A sentence for /health about each task that died lately."""
        now_s = self._now_s()
        with self._lock:
            return [
                f"{task} died {now_s - death.at_s:.0f} s ago"
                + (", so this process ends" if death.lasting else f" ({self._counts[task]} in all)")
                + f": {death.error}"
                for task, death in self._last.items()
                if death.lasting or now_s - death.at_s < SHOWN_S
            ]

    def forget(self) -> None:
        """As in a process that has just begun; for tests, of which many share one."""
        with self._lock:
            self._counts.clear()
            self._last.clear()


deaths: Final = Deaths()
"""Those of this process."""


def log_error(event: str, error: BaseException | None, **fields: object) -> None:
    """Where a role logs, or else, in a user's program, where that logs. Loaded only now: a short
    producer is done in less time than the logger takes to load."""
    import structlog

    from headgate.telemetry import LogLine

    if structlog.is_configured():
        structlog.get_logger().error(LogLine[event], exc_info=error, **fields)
    else:
        logging.getLogger("headgate").error("%s %s", LogLine[event], fields, exc_info=error)
