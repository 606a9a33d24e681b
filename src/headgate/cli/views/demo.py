"""What is seen of a demo while it runs: a live screen for people, sparse lines for logs.

Invariant: a display only shows; it decides nothing and may be left at any moment.
"""

from __future__ import annotations

import math
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headgate.demo.draining import ROLES
from headgate.demo.flight import FlightPath
from headgate.demo.screen import SPARK_TAKES, Screen, line
from headgate.demo.view import View

QUICK_SHARE = 0.05
"""How much of the start each role but the router takes; the router's rest is Spark."""

SPARK_S = 8.0
"""The bar is two thirds through Spark's start after so long; it never quite gets there before."""


LOCAL_MODES = 3
"""Where a terminal's attributes have them."""


class Display(Protocol):
    show_every_s: float

    def open(self) -> None: ...

    def close(self) -> None:
        """Leave what was shown last; doing it twice is fine."""

    def say(self, sentence: str) -> None:
        """A sentence about a role that died or came back."""

    def progress(self, role: str) -> None:
        """`role` is ready."""

    def named(self, address: str) -> None:
        """Where the demo's page is."""

    def show(self, view: View) -> None: ...

    def stopping(self) -> None:
        """The first Ctrl-C was heard."""

    def resized(self) -> None:
        """The terminal has another size."""


def start_share(ready: list[str], elapsed_s: float) -> float:
    """How much of the start is done, from 0 to 1: what is ready, and a guess for Spark."""
    quick = sum(QUICK_SHARE for role in ready if role != "router")
    if "router" in ready:
        return min(1.0, quick + 1 - QUICK_SHARE * (len(ROLES) - 1))
    spark = 1 - math.exp(-max(0.0, elapsed_s) / SPARK_S)
    return quick + spark * (1 - QUICK_SHARE * len(ROLES))


def _shared(plan: FlightPath) -> str:
    return f", shared by {plan.consumers} consumers" if plan.consumers else ""


class LiveDisplay:
    """One place on the terminal: first a progress bar, then the screen."""

    show_every_s = 0.5

    def __init__(self, console: Console, plan: FlightPath) -> None:
        self._plan = plan
        self._ready: list[str] = []
        self._started_s = time.monotonic()
        self._view: View | None = None
        self._console = console
        self._silent = ExitStack()
        self._live = self._new_live()

    def _new_live(self) -> Live:
        return Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=4,
            transient=False,
        )

    def open(self) -> None:
        self._silent.enter_context(_keys_unseen())
        self._live.start()

    def resized(self) -> None:
        """Begin anew: a terminal breaks the lines of a wider one, and what was drawn is no longer
        where it was."""
        if self._live.is_started:
            self._live.stop()
            self._console.clear()
            self._live = self._new_live()
            self._live.start()

    def close(self) -> None:
        self._live.stop()
        self._silent.close()

    def say(self, sentence: str) -> None:
        self._live.console.print(f"headgate: {sentence}", markup=False, soft_wrap=True)

    def progress(self, role: str) -> None:
        self._ready.append(role)

    def named(self, address: str) -> None:
        return  # the screen has it among its hints

    def show(self, view: View) -> None:
        self._view = view

    def stopping(self) -> None:
        waiting = "" if self._view is None else "waiting for what is on its way, then "
        self.say(f"{waiting}stopping; Ctrl-C again ends it at once")

    def _render(self) -> RenderableType:
        if self._view is not None:
            return Screen(self._view)
        return self._starting(time.monotonic() - self._started_s)

    def _starting(self, elapsed_s: float) -> RenderableType:
        roles = Text()
        for role in ROLES:
            done = role in self._ready
            name = "router (Spark)" if role == "router" else role
            roles.append(f"{'●' if done else '○'} {name}   ", style="green" if done else "dim")
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=1.0, completed=start_share(self._ready, elapsed_s), width=50),
            f"{elapsed_s:.0f} s",
        )
        about = Text(
            f"{self._plan.aircraft:,} aircraft, {self._plan.per_s:g} position reports per second, "
            f"{self._plan.partitions} partitions{_shared(self._plan)}; {SPARK_TAKES}",
            style="dim",
        )
        title = "Headgate demo · starting · Ctrl-C ends it"
        return Panel(Group(about, Text(""), bar, roles), title=title, padding=(0, 1))


@contextmanager
def _keys_unseen() -> Iterator[None]:
    """A terminal that writes ^C where it is pressed breaks the last line of what is drawn."""
    if not sys.stdin.isatty():
        yield
        return
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    quiet = list(before)
    quiet[LOCAL_MODES] &= ~(termios.ECHO | termios.ECHOCTL)
    termios.tcsetattr(keys, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSANOW, before)


class PlainDisplay:
    """A line for each role, then one every few seconds."""

    show_every_s = 5.0

    def __init__(self, console: Console, plan: FlightPath) -> None:
        self._console = console
        self._plan = plan
        self._started_s = time.monotonic()

    def open(self) -> None:
        plan = self._plan
        self._print(
            f"demo: {plan.aircraft} aircraft, {plan.per_s:g} events/s, {plan.partitions} "
            f"partitions{_shared(plan)}, seed {plan.seed}; starting ({SPARK_TAKES})"
        )

    def close(self) -> None:
        return

    def resized(self) -> None:
        return

    def say(self, sentence: str) -> None:
        self._print(f"headgate: {sentence}")

    def progress(self, role: str) -> None:
        self._print(f"{role} ready after {time.monotonic() - self._started_s:.1f} s")

    def named(self, address: str) -> None:
        self._print(f"in a browser: {address}")

    def show(self, view: View) -> None:
        if view.produced:
            self._print(line(view))

    def stopping(self) -> None:
        self._print("headgate: stopping")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
