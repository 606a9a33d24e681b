"""What one reader of the flood gets, judged event by event: complete, each key in order, no more.

The producer's numbers say what comes next for each key, so nothing of the product is believed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, Protocol

from tests.system.harness import Command
from tests.system.soaking.flood import KEYS, Flood, Violation

REPEATS_WITHIN_S: Final = 10.0

Position = tuple[int, int]
"""Partition and seq."""


class Account:
    """What was got, by number; `last_fault_s` is when the last one was over, or now while one
    lasts."""

    def __init__(self, name: str, flood: Flood, last_fault_s: Callable[[], float]) -> None:
        self.name = name
        self.count = 0
        self.repeats = 0
        self.longest_pause_s = 0.0
        self._flood = flood
        self._last_fault_s = last_fault_s
        self._next: dict[str, int] = {f"k{number}": number for number in range(KEYS)}
        self._positions: dict[int, Position] = {}
        self._last_s = 0.0

    def take(self, key: str, number: int, position: Position, at_s: float) -> bool:
        """Whether it is new."""
        is_sent = number < len(self._flood.sent_at_s)
        if key != f"k{number % KEYS}" or not is_sent:
            raise Violation(f"{self.name} got {number} of {key} at {position}, which nobody sent")
        if number < self._next[key]:
            self._judge_repeat(number, position, at_s)
            return False
        if number > self._next[key]:
            raise Violation(
                f"{self.name} got {number} of {key} at {position}, {self._next[key]} was next: "
                "lost or out of order"
            )
        self._next[key] = number + KEYS
        self._positions[number] = position
        self.count += 1
        if self._last_s:
            self.longest_pause_s = max(self.longest_pause_s, at_s - self._last_s)
        self._last_s = at_s
        return True

    def is_away(self) -> None:
        """Until something comes again, that nothing comes is no pause."""
        self._last_s = 0.0

    def _judge_repeat(self, number: int, position: Position, at_s: float) -> None:
        first = self._positions[number]
        if first != position:
            raise Violation(f"{self.name} got {number} at {first} and at {position}")
        self.repeats += 1
        late_s = at_s - self._last_fault_s()
        if late_s > REPEATS_WITHIN_S:
            raise Violation(f"{self.name} got {number} again, {late_s:.0f} s after the last fault")


class Judged(Protocol):
    """Somebody who gets everything, and is looked at while it does."""

    name: str
    account: Account

    @property
    def count(self) -> int: ...

    def look(self) -> None:
        """At all that came since the last look; raises a Violation."""

    def is_complete(self, count: int) -> bool:
        """Whether so many came; raises a Violation, also where it ended."""


class Judge:
    """Looks at what one subscriber prints, in the order in which it does."""

    def __init__(self, account: Account) -> None:
        self.name = account.name
        self.account = account
        self._reached: dict[int, int] = {}
        self._subscriber: Command | None = None
        self._taken = 0

    @property
    def count(self) -> int:
        return self.account.count

    def listen(self, subscriber: Command) -> None:
        self._subscriber, self._taken = subscriber, 0
        self.account.is_away()

    def leave(self) -> str:
        """Where it would go on, as `--from` has it."""
        assert self._subscriber is not None
        self._subscriber.stop()
        self.look()
        self._subscriber = None
        return ",".join(f"{number}:{seq + 1}" for number, seq in sorted(self._reached.items()))

    def look(self) -> None:
        if self._subscriber is None:
            return
        lines = self._subscriber.out.timed(self._taken)
        for line, at_s in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last thing that somebody wrote who was killed
            self._judge(event, at_s)
        self._taken += len(lines)

    def is_complete(self, count: int) -> bool:
        self.look()
        if self._subscriber is not None and self._subscriber.process.poll() is not None:
            raise Violation(f"{self.name} ended: {self._subscriber.err.finish()[-3:]}")
        return self.count >= count

    def _judge(self, event: dict[str, Any], at_s: float) -> None:
        partition, seq = event["partition"], event["seq"]
        if self.account.take(event["key"], event["document"]["n"], (partition, seq), at_s):
            self._reached[partition] = max(seq, self._reached.get(partition, 0))
