"""Connections between clients and gateways within one process, both ends, without a socket.

What WebSockets over TCP do is done here too, and no more: a client that connects is admitted or
refused; messages arrive whole, in order and later; what is sent to an end that doesn't read waits,
and the sender is told when that is as much as a connection holds, and when there is room again; the
gateway's end pings, and cuts a client that is silent for too long; a close arrives behind what was
sent before it. One thread; each end lives on the event loop that opened it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from headgate import errors
from headgate.adapters.silence import Watched
from headgate.ports.connection import LinkListener, Peer, Reception, Visit

HELD_BYTES: Final = 256 * 1024
"""What may wait in one direction before the sender is told; it writes on at a quarter of that."""
TURN_BYTES: Final = 64 * 1024
"""What arrives in one turn of the loop."""
PING_S: Final = 30.0
"""Between two pings; a client that says nothing for twice as long is cut."""
CLOSE_TIMEOUT_S: Final = 2.0
"""For what a client sent last to be read."""
MEMORY_ADDRESS: Final = "127.0.0.1"
FIRST_FREE_PORT: Final = 40_000


class Frame(NamedTuple):
    kind: Literal["text", "ping", "pong", "close"]
    message: bytes = b""


class Way:
    """One direction of a connection. Made at the receiving end, which `take`s each frame; the
    sending end is told `on_full` at once, when more than `held_bytes` wait, and `on_room` later."""

    def __init__(self, take: Callable[[Frame], None], held_bytes: int) -> None:
        self._take = take
        self._held_bytes = held_bytes
        self._loop = asyncio.get_running_loop()
        self._frames: deque[Frame] = deque()
        self._arriving: asyncio.Handle | None = None
        self._is_read = True
        self._is_full = False
        self._telling: asyncio.Handle | None = None
        self.unsent_bytes = 0
        self.is_cut = False
        self.sent_from = self._loop
        self.on_full: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing

    def send(self, frame: Frame) -> None:
        if self.is_cut:
            return
        self._frames.append(frame)
        self.unsent_bytes += len(frame.message)
        self._arrive_soon()
        if self.unsent_bytes > self._held_bytes and not self._is_full:
            self._is_full = True
            self.on_full()

    def pause(self) -> None:
        self._is_read = False

    def resume(self) -> None:
        self._is_read = True
        self._arrive_soon()

    def cut(self) -> None:
        """Nothing arrives any more."""
        self.is_cut = True
        self._frames.clear()
        self.unsent_bytes = 0
        if self._arriving is not None:
            self._arriving.cancel()

    def reset(self) -> None:
        """What is on its way is lost; that it is over arrives."""
        self._frames.clear()
        self.unsent_bytes = 0
        self.send(Frame("close"))

    def _arrive_soon(self) -> None:
        if self._arriving is None and self._is_read and self._frames:
            self._arriving = self._loop.call_soon(self._arrive)

    def _arrive(self) -> None:
        self._arriving = None
        room = TURN_BYTES
        while self._frames and self._is_read and room > 0:
            frame = self._frames.popleft()
            self.unsent_bytes -= len(frame.message)
            room -= len(frame.message)
            self._take(frame)
        self._arrive_soon()
        if self._is_full and self._has_room and self._telling is None:
            self._telling = self.sent_from.call_soon(self._tell_of_room)

    @property
    def _has_room(self) -> bool:
        return self.unsent_bytes <= self._held_bytes // 4

    def _tell_of_room(self) -> None:
        self._telling = None
        if self._has_room and not self.is_cut:
            self._is_full = False
            self.on_room()


def _nothing() -> None:
    """Nobody wants to know."""


class MemoryConnections:
    """Who listens where; `open_link` is a client's way there. A client that is quiet for `ping_s`
    is asked whether it is there; of what isn't read, `held_bytes` wait on the way."""

    def __init__(self, *, ping_s: float = PING_S, held_bytes: int = HELD_BYTES) -> None:
        self.ping_s = ping_s
        self.held_bytes = held_bytes
        self._entrances: dict[str, MemoryListener] = {}
        self._next_port = FIRST_FREE_PORT
        self.open: dict[MemoryWire, None] = {}

    def open_link(self, listener: LinkListener, silence_s: float) -> MemoryLink:
        return MemoryLink(self, listener, silence_s)

    def at(self, address: str) -> MemoryListener | None:
        return self._entrances.get(address)

    def listen(self, host: str, port: int, entrance: MemoryListener, setting: str) -> int:
        if not port:
            port, self._next_port = self._next_port, self._next_port + 1
        if f"{host}:{port}" in self._entrances:
            raise errors.PortInUse(f"port {port} on {host} is in use; see {setting}", port=port)
        self._entrances[f"{host}:{port}"] = entrance
        return port

    def forget(self, entrance: MemoryListener) -> None:
        for address in [one for one, at in self._entrances.items() if at is entrance]:
            del self._entrances[address]

    def gone(self, loop: asyncio.AbstractEventLoop) -> None:
        """Everything on `loop` is, without a word: its connections end for the others."""
        for entrance in [one for one in self._entrances.values() if one.loop is loop]:
            self.forget(entrance)
        for wire in [*self.open]:
            if loop in (wire.loop, wire.link.loop):
                del self.open[wire]
                wire.loop.call_soon(wire.over)
                wire.link.loop.call_soon(wire.link.left)


class MemoryListener:
    """Implements ports.connection.ConnectionListener."""

    def __init__(self, network: MemoryConnections) -> None:
        self._network = network
        self._reception: Reception
        self.loop: asyncio.AbstractEventLoop

    async def start(self, reception: Reception, host: str, port: int, *, setting: str = "") -> int:
        self._reception, self.loop = reception, asyncio.get_running_loop()
        return self._network.listen(host, port, self, setting)

    def stop(self) -> None:
        self._network.forget(self)

    def visited(self, link: MemoryLink, visit: Visit) -> None:
        """Somebody is at the door."""
        reception = self._reception
        try:
            peer = reception.admit(visit)
        except errors.HeadgateError as error:
            link.loop.call_soon(link.refused, error)
            return
        network = self._network
        end = MemoryWire(link, peer, reception.message_bytes, network)
        link.loop.call_soon(link.admitted, end)
        peer.connected(end)


class MemoryWire:
    """The gateway's end; implements ports.connection.Wire."""

    peer_address = MEMORY_ADDRESS

    def __init__(
        self,
        link: MemoryLink,
        peer: Peer,
        message_bytes: int,
        network: MemoryConnections,
    ) -> None:
        self.link = link
        self._open = network.open
        network.open[self] = None
        self._peer = peer
        self._message_bytes = message_bytes
        self.loop = asyncio.get_running_loop()
        self._is_over = self._is_closing = False
        self._heard, self._heard_by_the_ping = 0, -1
        self._ping_s = network.ping_s
        self._pinging = self.loop.call_later(self._ping_s, self._ping)
        self._way = way = link.way
        way.sent_from, way.on_full, way.on_room = self.loop, peer.paused, peer.resumed
        self.way = Way(self._take, network.held_bytes)
        """From the client to here."""
        self.way.sent_from = link.loop

    # --- for the gateway -------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        self._way.send(Frame("text", message))

    @property
    def unsent_bytes(self) -> int:
        return self._way.unsent_bytes

    def is_closing(self) -> bool:
        return self._is_closing

    def stop_reading(self) -> None:
        self.way.pause()

    def read_on(self) -> None:
        self.way.resume()

    def close(self, code: int, reason: bytes) -> None:
        self._is_closing = True
        self.way.cut()
        self._way.send(Frame("close", reason))

    def abort(self) -> None:
        if not self._is_over:
            self._way.reset()
            self.loop.call_soon(self.over)

    # --- underneath ------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        self._heard += 1
        if frame.kind == "close":
            self._is_closing = True
            self._peer.leaving()
            self.link.loop.call_soon(self.link.left)
            self.over()
        elif frame.kind == "text" and len(frame.message) > (limit := self._message_bytes):
            self._peer.fail(errors.TooLarge(f"a message is over {limit} bytes", limit=limit))
        elif frame.kind == "text":
            self._peer.heard(frame.message)

    def over(self) -> None:
        """The connection is, for this end."""
        if not self._is_over:
            self._is_over = self._is_closing = True
            self._open.pop(self, None)
            self._pinging.cancel()
            self.way.cut()
            self._way.on_full = self._way.on_room = _nothing
            self._peer.disconnected()

    def _ping(self) -> None:
        if self._heard == self._heard_by_the_ping:
            self.abort()
            return
        self._heard_by_the_ping = self._heard
        self._way.send(Frame("ping"))
        self._pinging = self.loop.call_later(self._ping_s, self._ping)


class MemoryLink(Watched):
    """The client's end; implements ports.connection.Link."""

    def __init__(
        self, network: MemoryConnections, listener: LinkListener, silence_s: float
    ) -> None:
        super().__init__(listener, silence_s)
        self._network = network
        self._wire: MemoryWire | None = None
        self._gone = asyncio.Event()
        self._opening: asyncio.Future[None]
        self.loop = asyncio.get_running_loop()
        self.way = Way(self._take, network.held_bytes)
        """From the gateway to here."""

    async def connect(self, url: str) -> None:
        where, _, query = url.partition("?")
        address, slash, path = where.removeprefix("ws://").partition("/")
        self._opening = self.loop.create_future()
        entrance = self._network.at(address)
        if entrance is None:
            self.loop.call_soon(self.refused, errors.PeerUnreachable("nobody listens there"))
        else:
            visit = Visit(slash + path, query, host=address)
            entrance.loop.call_soon(entrance.visited, self, visit)
        try:
            await self._opening
        except errors.HeadgateError as error:
            self.abort()
            raise errors.PeerUnreachable(
                f"no gateway takes subscribers at {where}: {error}", url=where
            ) from error
        except BaseException:
            self.abort()
            raise

    # --- for its owner ---------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        if self._wire is not None and not self._over:
            self._wire.way.send(Frame("text", message))

    def pause(self) -> None:
        self.is_paused = True
        self.way.pause()

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self.heard_frames += 1  # silence is counted from now on
            self.way.resume()

    def close(self) -> None:
        if self._end() and self._wire is not None:
            self.way.cut()
            self._wire.way.send(Frame("close"))
            self._timer = self.loop.call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        self._end()
        self.way.cut()
        if self._wire is not None and not self._gone.is_set():
            self._wire.loop.call_soon(self._wire.over)
            self.loop.call_soon(self.left)

    async def wait_closed(self) -> None:
        if self._wire is not None:
            await self._gone.wait()

    # --- underneath ------------------------------------------------------------------------------

    def admitted(self, wire: MemoryWire) -> None:
        self._wire = wire
        if self._over:
            self.abort()
            return
        self._watch()
        self._listener.opened(self)
        if not self._opening.done():
            self._opening.set_result(None)

    def refused(self, error: errors.HeadgateError) -> None:
        if not self._opening.done():
            self._opening.set_exception(error)

    def left(self) -> None:
        """Nothing of the connection is open any more."""
        self._gone.set()
        if self._end():
            self._listener.lost()
        elif self._timer is not None:
            self._timer.cancel()

    def _take(self, frame: Frame) -> None:
        self.heard_frames += 1
        if frame.kind == "text" and not self._over:
            self._listener.heard(frame.message)
        elif frame.kind == "ping" and self._wire is not None:
            self._wire.way.send(Frame("pong"))
        elif frame.kind == "close" and self._wire is not None:
            self._wire.loop.call_soon(self._wire.over)
            self.left()
