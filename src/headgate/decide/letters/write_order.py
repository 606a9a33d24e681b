"""Letters that wait to be written, of every gateway by themselves.

Invariants: those of one gateway keep the order they were added in. Gateways take turns, a letter
each, so one for which thousands wait holds nobody else's up; also where few are written at a time,
or none: the turn passes with each attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from headgate.model.letters import NewLetter


class InTurn:
    def __init__(self) -> None:
        self._queues: dict[str, deque[NewLetter]] = {}
        """None is empty; whose turn is next comes first."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, letter: NewLetter) -> None:
        self._queues.setdefault(letter.gateway_id, deque()).append(letter)
        self._size += 1

    def upcoming(self) -> Iterator[NewLetter]:
        """All of them, in the order in which to write them; nothing may be added meanwhile."""
        rows = [iter(queue) for queue in self._queues.values()]
        while rows:
            left = []
            for row in rows:
                for letter in row:
                    left.append(row)
                    yield letter
                    break
            rows = left

    def tried(self, letters: Sequence[NewLetter]) -> None:
        """These letters were tried first; now it is the turn of those behind the last one."""
        for gateway_id in list(self._queues):
            self._queues[gateway_id] = self._queues.pop(gateway_id)
            if gateway_id == letters[-1].gateway_id:
                break

    def remove(self, letters: Sequence[NewLetter]) -> None:
        """These are done. They came first when they were tried."""
        for letter in letters:
            queue = self._queues[letter.gateway_id]
            queue.popleft()
            if not queue:
                del self._queues[letter.gateway_id]
        self._size -= len(letters)
