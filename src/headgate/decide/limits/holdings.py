"""How much of something each of many may have at a time: connections, subscriptions, and what the
filters of those cost.

Principals are counted by their name, callers without a credential by their address. Invariants:
what is refused takes nothing; what ends is given back once, however often that is said; a name that
holds nothing isn't remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from headgate.decide.limits.addresses import counted_as
from headgate.errors import InvalidFilter, TooMany
from headgate.model.access import Principal

GiveBack = Callable[[], None]
SETTINGS = "security.limits"


@dataclass(frozen=True, slots=True)
class Most:
    """What one may have at a gateway at a time; 0: any number of them. The cost is that of all
    their filters together, for one document, at worst."""

    connections: int = 0
    subscriptions: int = 0
    filter_cost_us: int = 0


ANY = Most()


@dataclass(frozen=True, slots=True)
class Party:
    """Somebody, and what they may have."""

    who: str = ""
    most: Most = ANY


class Holdings:
    """`most` counts for principals that have no limits of their own."""

    def __init__(self, most: Most = ANY) -> None:
        self._most = most
        self._connections: Counter[str] = Counter()
        self._subscriptions: Counter[str] = Counter()
        self._costs_us: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many are remembered."""
        return len({*self._connections, *self._subscriptions, *self._costs_us})

    def of(self, who: str) -> Most:
        """What `who` holds of what is limited."""
        return Most(self._connections[who], self._subscriptions[who], self._costs_us[who])

    def party(self, principal: Principal | None, address: str) -> Party:
        most = self._most
        if principal is None or principal.kind == "nobody":
            return Party(f"address {counted_as(address)}", most)
        own = principal.limits
        return Party(
            f"{principal.kind} {principal.name}",
            Most(
                own.connections or most.connections,
                own.subscriptions or most.subscriptions,
                own.filter_cost_us or most.filter_cost_us,
            ),
        )

    def connect(self, party: Party) -> GiveBack:
        """Raises TooMany."""
        most = party.most.connections
        if most and self._connections[party.who] >= most:
            raise _too_many(party, "connections", most, "close one")
        return self._took(self._connections, party.who, 1 if most else 0)

    def subscribe(self, party: Party, cost_us: int) -> GiveBack:
        """One with a filter of that cost. Raises TooMany, and InvalidFilter for one that costs too
        much by itself."""
        self._check(party, cost_us)
        most = party.most
        counted = self._took(self._subscriptions, party.who, 1 if most.subscriptions else 0)
        paid = self._took(self._costs_us, party.who, cost_us if most.filter_cost_us else 0)

        def give_back() -> None:
            counted()
            paid()

        return give_back

    def _check(self, party: Party, cost_us: int) -> None:
        who, most = party.who, party.most
        if most.subscriptions and self._subscriptions[who] >= most.subscriptions:
            raise _too_many(party, "subscriptions", most.subscriptions, "end one")
        most_us = most.filter_cost_us
        if not most_us or not cost_us:
            return
        if cost_us > most_us:
            raise InvalidFilter(
                f"the filter may cost more for one record than {who} may have ({most_us} µs; "
                f"{SETTINGS}.filter_cost, or the token's own): make it simpler",
                cost_us_max=most_us,
            )
        if self._costs_us[who] + cost_us > most_us:
            raise TooMany(
                f"the filters of {who} may cost more together than one may have ({most_us} µs; "
                f"{SETTINGS}.filter_cost, or the token's own): end a subscription, or make them "
                "simpler",
                limit=most_us,
            )

    @staticmethod
    def _took(of: Counter[str], who: str, amount: int) -> GiveBack:
        if not amount:
            return _nothing
        of[who] += amount
        has_it = True

        def give_back() -> None:
            nonlocal has_it
            if not has_it:
                return
            has_it = False
            of[who] -= amount
            if not of[who]:
                del of[who]

        return give_back


def _nothing() -> None:
    """Nobody counts it."""


def _too_many(party: Party, what: str, most: int, advice: str) -> TooMany:
    return TooMany(
        f"{party.who} has {most} {what} at this gateway, as many as one may "
        f"({SETTINGS}.{what}, or the token's own): {advice}, or try again later",
        limit=most,
    )
