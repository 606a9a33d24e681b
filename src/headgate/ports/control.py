"""The stream between a node and the coordinator, seen from the node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from headgate.model.control import FromCoordinator, Hello, ToCoordinator


class ControlSession(Protocol):
    """Reconnects by itself, with backoff and jitter, for as long as it is open.

    After every (re)connection the session sends the hello it gets from `hello()` first, so the
    coordinator always learns the node's present state; whoever uses the session sees a `Welcome`
    in `messages()` and then sends again what the coordinator must know.
    """

    async def send(self, message: ToCoordinator) -> bool:
        """Hand `message` to the stream; False when there is no connection at the moment."""

    def messages(self) -> AsyncIterator[FromCoordinator]:
        """What the coordinator sends, across reconnections, until `close`."""

    @property
    def connected(self) -> bool: ...

    @property
    def heard_s(self) -> float:
        """When the last check-in was said that the coordinator has answered, by the event loop's
        clock: it was there then, and knew this node. When an answer is read says nothing: to a node
        that stood still everything that waited for it is news, and it is connected until it finds
        that it isn't."""

    async def close(self) -> None:
        """Say goodbye if connected, then end; `messages()` ends too."""


class HelloSource(Protocol):
    def __call__(self) -> Hello: ...
