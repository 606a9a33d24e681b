"""Which of several coordinators leads.

At most one leadership is held at any time. Nobody can promise that a process which was paused
hasn't lost its own meanwhile, so two things come with every leadership: `held`, by the local clock,
to be asked before acting, and `revision`, by which a store refuses a leader that has been
overtaken.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from headgate.model.leader import Leader


class Leadership(Protocol):
    """One term of one leader. It never comes back: a leader that lost it campaigns again."""

    @property
    def revision(self) -> int:
        """Higher than that of every leadership before it."""

    @property
    def held(self) -> bool:
        """Whether it can't have passed to another candidate yet, by the clock at this very moment.

        False at once after a pause longer than the lease, before any task has been told.
        """

    async def lost(self) -> None:
        """Returns when the leadership is over, for whatever reason."""

    async def resign(self) -> None:
        """Give it back, so that another can take it at once; harmless when it is over."""


class Election(Protocol):
    async def campaign(self, candidate: Leader) -> Leadership:
        """Wait until `candidate` leads.

        Raises StorageFailed when the store was never reached: then the configuration is wrong.
        Once it has answered, a campaign outlasts its absence.
        """

    def observe(self) -> AsyncGenerator[Leader | None, None]:
        """Who leads, now and after every change; None while nobody does.

        What is yielded is the present state, so short terms may be skipped. Nothing comes while
        the store is away. Raises StorageFailed as `campaign` does.
        """
