"""Which subscriptions have had which redelivery. One that is for several goes to those with room
and is put off for the others; when it comes again, those that have had it are left out.

Invariant: of a redelivery that was put off it is remembered which subscriptions have had it until
it comes again, for `ttl_s` at most: forgotten before, they would get it again, behind newer ones.
So `put_off` refuses a further redelivery where the memory would exceed `capacity`, but for a single
one; it doesn't refuse the last subscriptions of one that is remembered already, because that one is
done then, and makes room. A redelivery that all have had is remembered in the room beside it, in
case it comes twice by accident. Never more than `capacity` together, those last subscriptions
aside: redeliveries, and the subscriptions that have had them. Time is an argument; it must never go
backwards.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from headgate.model.delivery import Delivery

Sending = tuple[str, int, int, int]
"""Topic, partition, seq and the wish. Each reset and each retry is a wish of its own, so what it
brings is never taken for that of the one before; and another owner of the partition goes on with
the same wish, so nobody gets again what it had from the former one."""

_NOBODY: frozenset[str] = frozenset()


def sending_of(delivery: Delivery) -> Sending:
    wish = delivery.wish or -delivery.epoch
    return delivery.topic, delivery.partition, delivery.seq, wish


def marked(delivery: Delivery) -> Delivery:
    """As a redelivery, also when nobody wished it: that of its epoch."""
    if delivery.redelivery:
        return delivery
    return msgspec.structs.replace(delivery, redelivery=True, wish=-delivery.epoch)


class _Memory:
    """The oldest first, because whatever is remembered anew goes to the end. A reset brings many
    records to the same subscriptions, so those are kept once, and counted once: `size`."""

    def __init__(self) -> None:
        self._entries: dict[Sending, tuple[float, frozenset[str]]] = {}
        self._groups: dict[frozenset[str], frozenset[str]] = {}
        self._uses: Counter[frozenset[str]] = Counter()
        self.size = 0

    def names(self, sending: Sending) -> frozenset[str]:
        found = self._entries.get(sending)
        return _NOBODY if found is None else found[1]

    def size_with(self, sending: Sending, names: frozenset[str]) -> int:
        """Its size if `names` were kept for `sending`."""
        known = self.names(sending)
        if known == names:
            return self.size
        freed = 0 if not known else 1 + (len(known) if self._uses[known] == 1 else 0)
        return self.size - freed + 1 + (0 if names in self._uses else len(names))

    def keep(self, sending: Sending, names: frozenset[str], now_s: float) -> None:
        self.drop(sending)
        group = self._groups.setdefault(names, names)
        self.size += 1 + (0 if group in self._uses else len(group))
        self._uses[group] += 1
        self._entries[sending] = now_s, group

    def drop(self, sending: Sending) -> None:
        _, group = self._entries.pop(sending, (0.0, _NOBODY))
        if not group:
            return
        self._uses[group] -= 1
        self.size -= 1
        if not self._uses[group]:
            del self._uses[group], self._groups[group]
            self.size -= len(group)

    def oldest(self) -> tuple[Sending, float] | None:
        for sending, (kept_s, _) in self._entries.items():
            return sending, kept_s
        return None


class Redelivered:
    def __init__(self, *, capacity: int, ttl_s: float) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._put_off = _Memory()
        self._settled = _Memory()

    def had_by(self, sending: Sending) -> frozenset[str]:
        """The subscriptions that have had it."""
        return self._put_off.names(sending) or self._settled.names(sending)

    def put_off(
        self, sending: Sending, names: frozenset[str], now_s: float, *, are_all: bool = False
    ) -> bool:
        """The redelivery will come again for other subscriptions than `names`, which have had it,
        or, where they `are_all`, to be settled; False, and nothing changes, if that can't be
        remembered."""
        if not names:
            return True
        size = self._put_off.size_with(sending, names)
        ends = are_all and bool(self._put_off.names(sending))
        if size > max(self._capacity, 1 + len(names)) and not ends:
            return False
        self._settled.drop(sending)
        self._put_off.keep(sending, names, now_s)
        self._make_room()
        return True

    def settled(self, sending: Sending, names: frozenset[str], now_s: float) -> None:
        """The subscriptions `names`, at least one, have had the redelivery, and no other is
        left."""
        self._put_off.drop(sending)
        self._settled.keep(sending, names, now_s)
        self._make_room()

    def forget(self, sending: Sending) -> None:
        """Which subscriptions have had it is known otherwise."""
        self._put_off.drop(sending)
        self._settled.drop(sending)

    def forget_old(self, now_s: float) -> None:
        for memory in (self._put_off, self._settled):
            while (oldest := memory.oldest()) is not None and now_s - oldest[1] >= self._ttl_s:
                memory.drop(oldest[0])

    def _make_room(self) -> None:
        while len(self) > self._capacity and (oldest := self._settled.oldest()) is not None:
            self._settled.drop(oldest[0])

    def __len__(self) -> int:
        return self._put_off.size + self._settled.size
