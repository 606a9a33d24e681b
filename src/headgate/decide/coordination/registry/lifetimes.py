"""Subscriptions that end unless their gateway renews them.

A gateway renews all it has with one message, so what is kept per renewal is one time per gateway.
A subscription ends when neither it was registered nor its gateway renewed within its time-to-live.

Invariant: looking for what has ended costs next to nothing while gateways renew in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headgate.model.subscription import Subscription


@dataclass(slots=True)
class Lifetimes:
    _renewed_ms: dict[str, int] = field(default_factory=dict)
    _begun_ms: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    """By gateway and time-to-live: when each subscription was registered last."""

    def begin(self, subscription: Subscription, now_ms: int) -> None:
        """From now on, or anew; only for those that have a time-to-live."""
        self._begun_ms.setdefault(_group(subscription), {})[subscription.id] = now_ms

    def end(self, subscription: Subscription) -> None:
        group = self._begun_ms.get(_group(subscription))
        if group is not None:
            group.pop(subscription.id, None)
            if not group:
                del self._begun_ms[_group(subscription)]

    def renew(self, gateway_id: str, now_ms: int) -> None:
        self._renewed_ms[gateway_id] = now_ms

    def forget(self, gateway_id: str) -> None:
        self._renewed_ms.pop(gateway_id, None)

    def ended(self, now_ms: int) -> dict[str, list[str]]:
        """By gateway what has ended by now."""
        ended: dict[str, list[str]] = {}
        for (gateway_id, ttl_ms), begun_ms in self._begun_ms.items():
            latest_ms = now_ms - ttl_ms
            if self._renewed_ms.get(gateway_id, latest_ms) > latest_ms:
                continue
            gone = [name for name, at_ms in begun_ms.items() if at_ms <= latest_ms]
            if gone:
                ended.setdefault(gateway_id, []).extend(gone)
        return ended

    def forgive(self, absent_ms: int) -> None:
        """The coordinator itself stood still: nobody could renew anything."""
        for gateway_id in self._renewed_ms:
            self._renewed_ms[gateway_id] += absent_ms
        for group in self._begun_ms.values():
            for name in group:
                group[name] += absent_ms

    def contradictions(self, subscriptions: Iterable[Subscription]) -> Iterator[str]:
        mortal: dict[tuple[str, int], set[str]] = {}
        for one in subscriptions:
            if one.ttl_ms:
                mortal.setdefault(_group(one), set()).add(one.id)
        if mortal != (kept := {group: set(names) for group, names in self._begun_ms.items()}):
            yield f"{mortal} have a time-to-live, and {kept} is kept"


def _group(subscription: Subscription) -> tuple[str, int]:
    return subscription.gateway_id, subscription.ttl_ms
