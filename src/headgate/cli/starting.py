"""What is seen while everything starts: one line, however narrow the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.text import Text

from headgate.demo.draining import ROLES
from headgate.demo.screen import SPARK_TAKES


def starting_line(ready: Sequence[str], elapsed_s: float) -> str:
    """For how long, who is ready, and what takes long."""
    there = ", ".join(role for role in ROLES if role in ready)
    waits = "" if "router" in ready else SPARK_TAKES
    done = f": {there} ready" if there else ""
    return f"starting {elapsed_s:.0f} s{done}" + (f"; {waits}" if waits else "")


class Starting:
    """The line of this moment, cut to the width there is."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._started_s = now_s()
        self._ready: list[str] = []

    def is_ready(self, role: str) -> None:
        self._ready.append(role)

    def __rich__(self) -> Text:
        line = starting_line(self._ready, self._now_s() - self._started_s)
        return Text(line, no_wrap=True, overflow="ellipsis")
