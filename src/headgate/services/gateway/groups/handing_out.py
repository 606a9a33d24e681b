"""Hands out the items of its targets to one consumer.

Invariants: targets take turns; what the consumer hasn't acknowledged is bounded in all; an item
that has to be alone in its hands is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from headgate import errors
from headgate.services.gateway.groups.target import Target


class Sink(Protocol):
    """The consumer's connection."""

    @property
    def has_left(self) -> bool:
        """Whether the consumer has said that it leaves, and won't be back."""

    @property
    def free(self) -> bool:
        """Whether an event may be written now; never to one that has left."""

    def send(self, message: bytes) -> None:
        """Write an event; only while it is `free`."""

    def answer(self, message: bytes) -> None:
        """Write anything else, now or as soon as it can be taken."""

    def fail(self, error: errors.HeadgateError) -> None:
        """End the connection, and say why."""


class HandingOut:
    """`targets` are the consumer's, as they come and go; `most` may be in its hands, and
    `most_bytes` of documents, but for a single one. It is `blamed` for what it fails with where
    there is a limit to that."""

    def __init__(
        self,
        sink: Sink,
        targets: Mapping[int, Target],
        *,
        most: int,
        most_bytes: int,
        blamed: bool,
    ) -> None:
        self._sink = sink
        self._targets = targets
        self._most, self._most_bytes = most, most_bytes
        self._blamed = blamed
        self._waiting: dict[Target, None] = {}
        """Targets that may have something to hand out, in the order of their turns."""
        self._alone: Target | None = None
        """Of which something is to be alone in the consumer's hands."""
        self._flushing: asyncio.Handle | None = None
        self._has_stopped = False

    @property
    def out(self) -> int:
        """How much the consumer has in hand."""
        return sum([target.out for target in self._targets.values()])

    def ready(self, target: Target) -> None:
        """It may have something for the consumer."""
        if self._has_stopped or not self._has(target):
            return
        self._waiting[target] = None
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self.flush)

    def all_ready(self) -> None:
        for target in list(self._targets.values()):
            self.ready(target)

    def is_alone_with(self, target: Target) -> None:
        """The consumer has what it was to be alone with."""
        self._alone = target

    def forget(self, target: Target) -> None:
        self._waiting.pop(target, None)

    def stop(self) -> None:
        """Nothing more is handed out."""
        self._has_stopped = True
        self._waiting.clear()
        if self._flushing is not None:
            self._flushing.cancel()

    def flush(self) -> None:
        """Hand out what waits, for as long as the connection and the bounds allow."""
        self._flushing = None
        out = self.out
        # What nobody has may be in hand, too: it must not keep itself from being handed out.
        out_bytes = sum([target.out_bytes for target in self._targets.values()])
        while (
            self._waiting
            and self._sink.free
            and out < self._most
            and (not out or out_bytes < self._most_bytes)
        ):
            target = self._alone if self._is_somebody_alone() else next(iter(self._waiting))
            assert target is not None
            self._waiting.pop(target, None)
            if (failure := target.failure) is not None and not target.stopped:
                self._sink.fail(failure)
                return
            message = target.take(alone=not self._blamed or self._works_on_nothing(out))
            if target.wants_alone:
                self._alone = target
            if message is not None:
                self._sink.send(message)
                out += 1
                out_bytes += len(message)
                self._waiting[target] = None
            elif self._alone is target:
                return

    def _works_on_nothing(self, out: int) -> bool:
        """Of all that the consumer has."""
        return not out or not sum([target.worked_on for target in self._targets.values()])

    def _is_somebody_alone(self) -> bool:
        if self._alone is not None and not (self._has(self._alone) and self._alone.wants_alone):
            self._alone = None
        return self._alone is not None

    def _has(self, target: Target) -> bool:
        return self._targets.get(target.number) is target
