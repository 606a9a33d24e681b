"""What a process takes from the machine it runs on without a call to another one: time, chance, its
own number, and another thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Machine(Protocol):
    """One value per process, made where it begins and handed to all its parts.

    Which clock is for what: timeouts, deadlines and pauses are the event loop's business, by its
    own `time()`; the wall clock is for what others see, store or compare with theirs, and may jump
    either way; the monotonic one is for how long something took or has lasted in this process, also
    where no loop runs.

    Each call but `offload` returns at once, raises nothing, and may be made from any thread.
    """

    def wall_ms(self) -> int:
        """Whole milliseconds since 1970, as events, letters and records carry them."""

    def wall_s(self) -> float:
        """The same clock in seconds, as fine as it gets."""

    def monotonic_s(self) -> float:
        """Never goes back; where it begins means nothing."""

    def cpu_s(self) -> float:
        """What this process has used of its processors; never goes back."""

    def jitter(self) -> float:
        """From 0 up to but not 1, evenly: so that not all do the same at the same time."""

    def token(self, size_bytes: int) -> str:
        """A name that nobody else has or guesses: twice as many hexadecimal digits."""

    def entropy(self, size_bytes: int) -> bytes:
        """The same, as bytes."""

    def pid(self) -> int:
        """The process that asks; another one after a fork."""

    async def offload(self, work: Callable[[], T]) -> T:
        """Do `work` where it doesn't hold up the loop; returns or raises what it does.

        `work` may run in another thread, beside everything else. When this is cancelled, it may
        still run to its end.
        """
