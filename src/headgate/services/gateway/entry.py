"""Who is connected here, from where, and what each principal and address has here.

Invariant: a connection counts from the moment it is one until it is over: for its address until its
principal is known, then for that. One that has as many as it may is told so, and gets no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headgate import errors
from headgate.decide.limits.holdings import GiveBack, Holdings, Party
from headgate.model.access import Principal

OnRefused = Callable[[errors.HeadgateError, Principal | None, str], None]
"""Hears why a caller at that address is refused something."""


def _unheard(_error: errors.HeadgateError, _who: Principal | None, _address: str) -> None:
    """Nobody writes it down."""


@dataclass(slots=True)
class Entry:
    """How a connection came in. `principal` None: clients need no credential, or this one has not
    shown its own yet."""

    holdings: Holdings = field(default_factory=Holdings)
    principal: Principal | None = None
    on_refused: OnRefused = _unheard
    party: Party = field(default_factory=Party)
    address: str = ""
    _taken: list[GiveBack] = field(default_factory=list)
    """Until the connection is over."""

    def begin(self, address: str) -> None:
        """It is connected from there. Raises TooMany."""
        self.address = address
        self.party = self.holdings.party(self.principal, address)
        self._taken.append(self.holdings.connect(self.party))

    def subscribe(self, cost_us: int) -> None:
        """To what lasts as long as the connection. Raises TooMany, and InvalidFilter."""
        self._taken.append(self.holdings.subscribe(self.party, cost_us))

    def end(self) -> None:
        for give_back in self._taken:
            give_back()

    def refused(self, error: errors.HeadgateError) -> None:
        self.on_refused(error, self.principal, self.address)
