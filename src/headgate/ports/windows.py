"""Where a router's windows run: the lanes of one plan after the other, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headgate.errors import HeadgateError
from headgate.model.lanes import LaneTally, WindowPlan


class WindowsDied(HeadgateError):
    """There is nothing left to run windows on; the process must be started again."""


class Plans(Protocol):
    """The router, as the code that runs its windows sees it. Both are called in the router's
    loop."""

    async def next_plan(self) -> WindowPlan | None:
        """The next window; waits a while for one. None: there is none for now, ask again."""

    async def returned(self, tallies: Sequence[LaneTally]) -> None:
        """The last plan's window has ended: each lane of it has given a tally. The next window is
        asked for when this returns."""


class Windows(Protocol):
    """Asks for a plan when it is free, runs the plan's lanes, and gives their tallies back.

    A window has ended when every lane of it has given its tally; lanes go on after that until
    their successors in the next window have taken over, or the coordinator tells them to end. A
    lane that fails is started again, under the next attempt; one that fails too often is a fault,
    and so is whatever else keeps windows from running. After a fault nothing is asked for until
    `begin`.

    Whether and when to begin again is the router's decision. Apart from `launch` and the first
    `begin`, every call returns within a bounded time.
    """

    async def launch(self) -> str:
        """Have everything there that windows run on, and return its name; called once, first.

        It may take long, and may fork: nothing may be connected before.
        """

    async def begin(self, plans: Plans) -> None:
        """Ask `plans` for windows from now on. What was begun before is abandoned: it asks for
        nothing any more, and its lanes end or will be overtaken."""

    async def fault(self) -> str | None:
        """Why windows don't run any more, though they were begun; None while they do.

        Raises WindowsDied when there is nothing left that could run them again.
        """

    @property
    def is_dead(self) -> bool:
        """Whether there is nothing left to run windows on; known without asking anybody."""

    async def failed(self) -> None:
        """Waits for as long as windows can be asked for, and raises what keeps them from it."""

    def settled_in(self) -> None:
        """The router is ready: whatever can wait for that may be done now."""

    async def stop(self) -> None:
        """End everything that runs, lanes too, at once. Nothing is asked for and no tally given
        after this; it may be called at any time, also while `launch` was given up."""

    async def close(self) -> None:
        """Give back what is left, after `stop`."""
