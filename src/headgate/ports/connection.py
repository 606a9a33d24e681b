"""A subscriber's or consumer's connection, seen from either end.

It carries text messages both ways, whole and in order, until it is over for both. The listener at
an end is told what happens where it happens, within the event loop and never within a call of its
own, except for `paused`. Both ends can stop reading: then what is sent to them waits at the other
one, and that one is told when as much waits as the connection should hold. An end that is gone
without a word is noticed by its silence: the gateway's end says something often enough, the
client's answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from headgate import errors

# --- the client's end ----------------------------------------------------------------------------


class LinkListener(Protocol):
    """The client's side of a link."""

    def opened(self, link: Link) -> None:
        """It is there; nothing is heard before this."""

    def heard(self, message: bytes) -> None:
        """The next message."""

    def lost(self) -> None:
        """It ended, or was silent for too long; nothing is heard after this."""


class Link(Protocol):
    """The client's end, for one connection. After `close` or `abort` nothing is told any more, not
    even by a connection that only now comes about, which ends at once."""

    async def connect(self, url: str) -> None:
        """Returns once `opened` was called. Raises PeerUnreachable where no gateway is. Cancelled,
        it leaves nothing open."""

    def send(self, message: bytes) -> None:
        """Hand over one message; on a connection that is lost nothing happens."""

    def pause(self) -> None:
        """Read no more for the moment. Silence doesn't count meanwhile."""

    def resume(self) -> None:
        """Read on."""

    def close(self) -> None:
        """Leave in good manners: what was sent arrives, if it does so soon."""

    def abort(self) -> None:
        """Leave at once."""

    async def wait_closed(self) -> None:
        """Until nothing of it is open; for one that was closed or aborted."""


class OpenLink(Protocol):
    """Makes a link that isn't connected yet, for a listener; one that hears nothing for `silence_s`
    is lost."""

    def __call__(self, listener: LinkListener, silence_s: float, /) -> Link: ...


# --- the gateway's end ---------------------------------------------------------------------------


class Wire(Protocol):
    """What a gateway writes one connection's messages to."""

    @property
    def send(self) -> Callable[[bytes], None]:
        """Writes one message at once, whatever waits. The same function for as long as the
        connection lasts: this is called for every event, so a caller that writes many keeps it."""

    @property
    def peer_address(self) -> str:
        """Where the client is connected from, without its port; empty where nobody knows."""

    @property
    def unsent_bytes(self) -> int:
        """What waits here because the client doesn't read."""

    def is_closing(self) -> bool:
        """Whether what is written now may not arrive, because the connection ends."""

    def stop_reading(self) -> None:
        """Nothing is `heard` until `read_on`; the client feels it."""

    def read_on(self) -> None: ...

    def close(self, code: int, reason: bytes) -> None:
        """End it after what was written, as a WebSocket is closed: with a code and a sentence. What
        a client that sends on meanwhile hasn't read by then may be lost to it."""

    def abort(self) -> None:
        """End it now; what waits is lost."""


class Peer(Protocol):
    """The gateway's side of a connection, from `connected` to `disconnected`."""

    def connected(self, wire: Wire) -> None:
        """It is there. Called first."""

    def heard(self, message: bytes) -> None:
        """The client has sent a whole message."""

    def paused(self) -> None:
        """The connection holds as much as it should; also within a `send`, which was taken."""

    def resumed(self) -> None:
        """There is room again."""

    def leaving(self) -> None:
        """The client has said that it leaves: nothing is read any more."""

    def fail(self, error: errors.HeadgateError) -> None:
        """The client has sent what is no message: say why, and close."""

    def disconnected(self) -> None:
        """It is over, however that came. Called once, last."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What a client that wants a connection says first; `host` and `origin` as a browser says them,
    `authorization` as a program may say who it is."""

    path: str
    query: str = ""
    host: str = ""
    origin: str = ""
    subprotocols: tuple[str, ...] = ()
    authorization: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Reception:
    """What a gateway makes of visits. `admit` raises a HeadgateError to refuse one: there is no
    connection then. A visitor that offers subprotocols and is admitted is told `subprotocol`; a
    client's message has `message_bytes` at most."""

    admit: Callable[[Visit], Peer]
    subprotocol: str
    message_bytes: int


class ConnectionListener(Protocol):
    """Where clients connect to a gateway. Start it once, stop it once."""

    async def start(self, reception: Reception, host: str, port: int, *, setting: str = "") -> int:
        """Listen and return the port, any free one for 0; raises PortInUse, naming `setting`."""

    def stop(self) -> None:
        """Take no more; the connections that are there stay."""
