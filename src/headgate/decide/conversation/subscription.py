"""One question of a subscriber, and how far its answers have come.

Invariants, per partition: said ≤ arrived (on this connection), and acknowledged ≤ handed out.
`positions`, what was handed out last, and `arrived` only grow, but for `disconnected` with manual
acknowledgements: that takes both back to what was acknowledged, because the rest comes again; and
but for `take_back`: a client that begins anew after `positions` misses nothing that the user hasn't
seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate import errors
from headgate.model.client_messages import Subscribed
from headgate.model.subscription import Priority

PLACES_SHOWN = 16

Conditions = Sequence[Mapping[str, Any]]
"""A structured filter: conditions with `field`, `op` and `value` that must all hold."""


class Subscription:
    def __init__(
        self,
        id_: str,
        topic: str,
        *,
        where: str | None = None,
        filter_: Conditions | None = None,
        start: str = "now",
        priority: Priority = "normal",
        tenant: str = "",
    ) -> None:
        self.id = id_
        self.topic = topic
        self.positions: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}
        self.subscribed: Subscribed | None = None
        self.is_refused = False
        """Whether the user was told that it can't be, since it last began."""
        self._where = where
        self._filter = filter_
        self._start = start
        self._priority = priority
        self._tenant = tenant
        self._arrived: dict[int, int] = {}
        self._handed_out: dict[int, int] = {}
        """The most that was ever handed out, whatever has to come again since."""
        self._said: dict[int, int] = {}
        self._unsaid: set[int] = set()
        """Partitions whose acknowledgements the gateway may not have heard."""

    def request(self) -> bytes:
        """Asks for everything after what has arrived, or from the start if nothing has begun."""
        self._said = dict(self._arrived)
        self._unsaid.clear()
        asked: dict[str, Any] = {"type": "subscribe", "id": self.id, "topic": self.topic}
        if self._where is not None:
            asked["where"] = self._where
        if self._filter is not None:
            asked["filter"] = self._filter
        if self._priority != "normal":
            asked["priority"] = self._priority
        if self._tenant:
            asked["tenant"] = self._tenant
        if self._arrived:
            asked["from"] = {str(number): seq + 1 for number, seq in self._arrived.items()}
        else:
            asked["from"] = self._start
        return msgspec.json.encode(asked)

    def goes_on(self) -> str:
        """A sentence that says from where the subscription goes on, as one could ask for it."""
        places = sorted(self._arrived.items())
        shown = ",".join(f"{number}:{seq + 1}" for number, seq in places[:PLACES_SHOWN])
        return f"{self.topic} goes on from {shown}{',…' if len(places) > PLACES_SHOWN else ''}"

    def begin(self, answer: Subscribed) -> None:
        self.subscribed = answer
        self.is_refused = False
        for partition, seq in answer.positions.items():
            for known in (
                self.positions,
                self.acknowledged,
                self._arrived,
                self._handed_out,
                self._said,
            ):
                known.setdefault(partition, seq)

    def arrive(self, partition: int, seq: int) -> bool:
        """Whether `seq` is wanted: it neither is here nor was acknowledged before it came again."""
        if seq <= self._arrived.get(partition, 0):
            return False
        self._arrived[partition] = seq
        if seq <= self.acknowledged.get(partition, 0):
            self._unsaid.add(partition)
            return False
        return True

    def wants(self, partition: int, seq: int) -> bool:
        """Whether it is unacknowledged."""
        return seq > self.acknowledged.get(partition, 0)

    def hand_out(self, partition: int, seq: int) -> None:
        self.positions[partition] = seq
        if seq > self._handed_out.get(partition, 0):
            self._handed_out[partition] = seq

    def take_back(self, partition: int, after_seq: int) -> None:
        """What was handed out behind `after_seq` reached nobody."""
        if after_seq < self.positions.get(partition, 0):
            self.positions[partition] = after_seq

    def check_handed_out(self, partition: int, seq: int) -> None:
        """Raises InvalidRequest for what never was, on no connection."""
        handed_out = self._handed_out.get(partition, 0)
        if seq > handed_out:
            raise errors.InvalidRequest(
                f"subscription {self.id} is at seq {handed_out} of partition {partition}, so {seq} "
                "can't be acknowledged"
            )

    def acknowledge(self, partition: int, seq: int) -> None:
        """Also of what was handed out on an earlier connection: it doesn't come again, or not as
        far as to the user."""
        if seq > self.acknowledged.get(partition, 0):
            self.acknowledged[partition] = seq
            self._unsaid.add(partition)
            if seq > self.positions.get(partition, 0):
                self.positions[partition] = seq

    def disconnected(self) -> None:
        """With manual acknowledgements, what was not acknowledged comes again."""
        self.positions = dict(self.acknowledged)
        self._arrived = dict(self.acknowledged)

    def acknowledgement(self) -> bytes | None:
        """What the gateway hasn't been told yet, if anything: never more than it has sent."""
        said: dict[str, int] = {}
        for partition in self._unsaid:
            seq = min(self.acknowledged[partition], self._arrived.get(partition, 0))
            if seq > self._said.get(partition, 0):
                self._said[partition] = said[str(partition)] = seq
        self._unsaid.clear()
        if not said:
            return None
        return msgspec.json.encode({"type": "ack", "subscription": self.id, "positions": said})
