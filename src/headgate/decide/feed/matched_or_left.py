"""What a change means to a subscription: it matches, it has left the filter, or neither.

Where a source gives the state before a change, a record that matched then and doesn't now is
delivered as `left`, so that a subscriber that keeps a copy can remove it. Where records are deleted
by a mark in them, an update that sets the mark is a delete, and one that clears it an insert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from headgate.decide.filter.paths import follow
from headgate.decide.filter.values import MISSING
from headgate.model.event import Op

Kind = Literal["event", "left"]
ByGateway = Mapping[str, tuple[str, ...]]
"""Subscription ids per gateway."""


def leavers(before: ByGateway, after: ByGateway) -> dict[str, tuple[str, ...]]:
    """The subscriptions that matched the earlier state and don't match the present one."""
    left: dict[str, tuple[str, ...]] = {}
    for gateway_id, subscriptions in before.items():
        staying = after.get(gateway_id, ())
        gone = tuple(one for one in subscriptions if one not in staying)
        if gone:
            left[gateway_id] = gone
    return left


def kind_for(
    matches: Callable[[object], bool | None], document: object, earlier: object | None
) -> Kind | None:
    """The same for one filter. `earlier` is None where the source doesn't give it."""
    if matches(document) is True:
        return "event"
    if earlier is not None and matches(earlier) is True:
        return "left"
    return None


class SoftDeletes:
    """`field` is the dotted path of the mark; anything but absent, null and false sets it."""

    def __init__(self, field: str) -> None:
        self._mark = follow(tuple(field.split(".")))

    def op(self, op: Op, document: object, earlier: object | None) -> Op:
        """What `op` means; `earlier` is None where the source doesn't give it."""
        if op != "update":
            return op
        was, is_now = self._is_set(earlier), self._is_set(document)
        if is_now and not was:
            return "delete"
        return "insert" if was and not is_now else op

    def _is_set(self, document: object) -> bool:
        if type(document) is not dict:
            return False
        found = self._mark(document)
        return not (found is MISSING or found is None or found is False)
