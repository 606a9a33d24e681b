"""What an operator wants delivered once more to one gateway, beside the order: each is tried once,
when it is their turn. Invariant: each leaves in one way, sent and answered, or given up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headgate.decide.delivery.parts import ref_of
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef


class Again:
    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._in_flight: list[Delivery] = []

    def __len__(self) -> int:
        """Those that nobody has tried yet."""
        return len(self._waiting)

    def add(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        self._waiting.extendleft(reversed(deliveries))

    def send(self, most: int) -> list[Delivery]:
        """The first ones are on their way."""
        size = min(len(self._waiting), most)
        self._in_flight = [self._waiting.popleft() for _ in range(size)]
        return list(self._in_flight)

    def arrived(self) -> list[Delivery]:
        """What was on its way isn't any more."""
        batch, self._in_flight = self._in_flight, []
        return batch

    def drop(self, ref: PartitionRef) -> list[Delivery]:
        """Those of a partition, which won't be tried."""
        dropped = [one for one in self._waiting if ref_of(one) == ref]
        self._waiting = deque(one for one in self._waiting if ref_of(one) != ref)
        return dropped

    def give_up(self) -> list[Delivery]:
        """All of them; none will be tried."""
        given_up = list(self._waiting)
        self._waiting.clear()
        return given_up
