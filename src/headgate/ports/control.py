"""The stream between a node and the coordinator, seen from either end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from headgate.model.control.from_coordinator import FromCoordinator
from headgate.model.control.to_coordinator import Hello, ToCoordinator


class ControlSession(Protocol):
    """Reconnects by itself, with backoff and jitter, for as long as it is open.

    After every (re)connection the session sends the hello it gets from `hello()` first, so the
    coordinator always learns the node's present state; the user of the session sees a `Welcome` in
    `messages()` and then sends again what the coordinator must know.
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

    async def close(self, *, returns: bool = False) -> None:
        """Say goodbye if connected, and whether the node `returns`, then end; `messages()` ends
        too."""


class HelloSource(Protocol):
    def __call__(self) -> Hello: ...


class ControlStream(Protocol):
    """The coordinator's end of one connection, from the node's hello to its end.

    The coordinator that serves it reads with `receive` and has `write_until_hung` run beside that:
    what is sent waits until then. The stream ends when `Serve` returns; the node comes again.
    """

    def send(self, message: FromCoordinator) -> None:
        """Queue `message`; a node that reads too slowly loses the stream, not messages."""

    def hang(self) -> None:
        """End the stream after what is queued."""

    async def receive(self) -> ToCoordinator | None:
        """The next message; None when no more come, because the node said its last or is gone.
        Raises InvalidRequest for what can't be read."""

    async def write_until_hung(self) -> None:
        """Write what is queued until `hang`, or until the node is gone or too slow."""


class Serve(Protocol):
    """Serves one stream, whose hello has come; cancelled where the node is gone."""

    def __call__(self, stream: ControlStream, hello: Hello, /) -> Awaitable[None]: ...


class ControlListener(Protocol):
    """Where nodes find a coordinator. A stream without a hello that can be read isn't served."""

    async def start(self, serve: Serve, host: str, ports: list[int]) -> list[int]:
        """Listen on every port and return those bound, any free one for 0; raises OSError for one
        in use."""

    async def stop(self, grace_s: float) -> None:
        """Take no more streams; those that are served end within `grace_s`, or are cut."""
