"""Connections outlive tokens, not rights.

Every connection has a principal; every `LOOK_EVERY_S` it is looked up again, and the connection
ends when its principal doesn't hold any more. Invariant: a credential that has expired, or of which
this gateway has heard that it was revoked, ends its connections within twice that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headgate import errors
from headgate.model.access import Principal
from headgate.ports.access import Principals

LOOK_EVERY_S = 1.0

End = Callable[[errors.HeadgateError], None]


@dataclass(slots=True, eq=False)
class Stay:
    """One connection, for as long as it lasts; `end` closes it, and says why."""

    principal: Principal
    end: End


class Rights:
    """Everybody who is connected."""

    def __init__(self, principals: Principals) -> None:
        self.principals = principals
        self._stays: dict[Stay, None] = {}

    def __len__(self) -> int:
        return len(self._stays)

    def __iter__(self) -> Iterator[Stay]:
        return iter(tuple(self._stays))

    def begin(self, principal: Principal, end: End) -> Stay:
        stay = Stay(principal, end)
        self._stays[stay] = None
        return stay

    def over(self, stay: Stay) -> None:
        self._stays.pop(stay, None)

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """End the connections whose principal doesn't hold any more."""
        for stay in self:
            reason = self.principals.ended(stay.principal)
            if reason is not None:
                self.over(stay)
                stay.end(reason)
