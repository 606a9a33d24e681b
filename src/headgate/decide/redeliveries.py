"""What an operator wants delivered again to one subscriber, beside the order of its queue.

Invariant: bounded in number and bytes, within the gateway's budget; whoever finds no room tries
again later. It has no place in the order of records, so it moves no position.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar


class Sized(Protocol):
    def __len__(self) -> int: ...


class Shared(Protocol):
    """What may wait for all subscribers together: decide.subscriber.Budget."""

    taken_bytes: int

    @property
    def share_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Redelivery(NamedTuple, Generic[T]):
    """A record that may have been delivered before."""

    partition: int
    seq: int
    value: T


class Redeliveries(Generic[T]):
    def __init__(self, *, capacity: int, capacity_bytes: int, budget: Shared) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._budget = budget
        self._queue: deque[Redelivery[T]] = deque()
        self._queued_bytes = 0

    @property
    def has_room(self) -> bool:
        # An empty queue takes one of any size, or a large document could never pass.
        if not self._queue:
            return True
        limit_bytes = min(self._capacity_bytes, self._budget.share_bytes)
        return len(self._queue) < self._capacity and self._queued_bytes < limit_bytes

    def add(self, partition: int, seq: int, value: T) -> None:
        self._queue.append(Redelivery(partition, seq, value))
        self._queued_bytes += len(value)
        self._budget.taken_bytes += len(value)

    def peek(self) -> Redelivery[T]:
        return self._queue[0]

    def take(self) -> Redelivery[T]:
        item = self._queue.popleft()
        self._queued_bytes -= len(item.value)
        self._budget.taken_bytes -= len(item.value)
        return item

    def clear(self) -> None:
        while self._queue:
            self.take()

    def __len__(self) -> int:
        return len(self._queue)
