"""The control stream over gRPC: one bidirectional stream of opaque bytes per node.

Messages are msgpack of the tagged unions in model/control.py; gRPC only frames and multiplexes
them, so there is no second schema to keep in step. The session reconnects for as long as it is
open and checks in by itself, because a node that forgets to is indistinguishable from a dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any
from weakref import WeakValueDictionary

import grpc
import msgspec

from headgate.errors import InvalidRequest
from headgate.model.control import (
    CheckedIn,
    CheckIn,
    FromCoordinator,
    Goodbye,
    Hello,
    NotLeader,
    PushTopology,
    Refused,
    SubscriptionChanges,
    SubscriptionSnapshot,
    ToCoordinator,
    Welcome,
)
from headgate.tasks import Crew, Helpers

METHOD = "/headgate.Control/Session"
PING_EVERY_S = 5
PONG_WITHIN_S = 3
NOTICED_S = float(PING_EVERY_S + PONG_WITHIN_S)
"""Within that time a session that is cut off knows it."""
CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", PING_EVERY_S * 1_000),
    ("grpc.keepalive_timeout_ms", PONG_WITHIN_S * 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    # Each session has its own connection: a broken one must not be shared with its successor.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
QUEUE_BOUND = 10_000
LARGE_BYTES = 64 << 10
"""From this size on, messages are decoded one at a time, whoever they are from."""
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 2.0
GOODBYE_TIMEOUT_S = 2.0
WELCOME_TIMEOUT_S = 5.0
"""A frozen coordinator still accepts connections; whoever gets no answer asks the next one."""

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
decode_from_coordinator = msgspec.msgpack.Decoder(FromCoordinator).decode
decode_to_coordinator: Callable[[bytes], ToCoordinator] = msgspec.msgpack.Decoder(
    ToCoordinator
).decode


class GrpcControlSession:
    """A node's side of the stream; implements ports.control.ControlSession.

    `addresses` are those of all coordinators, with commas in between; one that doesn't lead says
    who does, and whoever gives no answer is left for the next.
    """

    def __init__(self, addresses: str, hello: Callable[[], Hello]) -> None:
        self._addresses = addresses.split(",")
        self._turn = 0
        self._leader = ""
        self._hello = hello
        self._incoming: asyncio.Queue[FromCoordinator | None] = asyncio.Queue(QUEUE_BOUND)
        self._outgoing: asyncio.Queue[ToCoordinator] | None = None
        self._check_in_s = 1.0
        self._heard_s = -math.inf
        self._asked_s: deque[float] = deque()
        """When each check-in of this stream was said that isn't answered yet."""
        self._closing = False
        self._crew = Crew("control")
        self._crew.keep("session", self._run)

    @property
    def connected(self) -> bool:
        return self._outgoing is not None

    @property
    def heard_s(self) -> float:
        return self._heard_s

    async def send(self, message: ToCoordinator) -> bool:
        outgoing = self._outgoing
        if outgoing is None:
            return False
        try:
            outgoing.put_nowait(message)
        except asyncio.QueueFull:
            # The coordinator doesn't read: as good as no connection.
            return False
        return True

    async def messages(self) -> AsyncIterator[FromCoordinator]:
        while (message := await self._incoming.get()) is not None:
            yield message

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        said = await self.send(Goodbye())
        await self._crew.close(grace_s=GOODBYE_TIMEOUT_S if said else 0.0)
        while self._incoming.full():
            self._incoming.get_nowait()
        self._incoming.put_nowait(None)

    async def _run(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            address = self._next_address()
            try:
                if await self._converse(address):
                    backoff_s = BACKOFF_FIRST_S
                    self._leader = address  # the one to try first when this stream broke
            except (
                grpc.aio.AioRpcError,
                asyncio.InvalidStateError,
                OSError,
                TimeoutError,
                msgspec.MsgspecError,
            ):
                pass  # whatever it was, the next connection starts afresh
            if self._closing:
                return
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    def _next_address(self) -> str:
        """Whoever is said to lead, once; then all in turn."""
        leader, self._leader = self._leader, ""
        if leader:
            return leader
        self._turn += 1
        return self._addresses[(self._turn - 1) % len(self._addresses)]

    async def _converse(self, address: str) -> bool:
        """One connection's life; True when the coordinator welcomed us, and never refused us.

        What is left of the former one is dropped first: our hello describes us as if it had never
        come, and the coordinator sends everything again.
        """
        while not self._incoming.empty():
            self._incoming.get_nowait()
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            stream: Any = channel.stream_stream(METHOD)()
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                await stream.write(encode(self._hello()))
            outgoing: asyncio.Queue[ToCoordinator] = asyncio.Queue(QUEUE_BOUND)
            self._asked_s.clear()
            async with Helpers() as helpers:
                writing = helpers.start(self._write(stream, outgoing))
                try:
                    welcomed = await self._take_in(stream, outgoing, writing)
                finally:
                    self._outgoing = None
        return welcomed

    async def _take_in(
        self, stream: Any, outgoing: asyncio.Queue[ToCoordinator], writing: asyncio.Future[None]
    ) -> bool:
        """All that comes, until the stream ends; True when the coordinator welcomed us."""
        welcomed = False
        while (data := await self._read(stream, outgoing, welcomed)) is not grpc.aio.EOF:
            if writing.done():
                writing.result()  # nothing leaves any more: better a new stream than half of one
            message = decode_from_coordinator(data)
            if isinstance(message, CheckedIn):
                if self._asked_s:
                    self._heard_s = self._asked_s.popleft()
                continue
            if isinstance(message, NotLeader):
                self._leader = message.address
                break
            if isinstance(message, Welcome):
                self._check_in_s = message.check_in_ms / 1000
                self._outgoing = outgoing
                welcomed = True
            await self._incoming.put(message)
            if isinstance(message, Refused):
                return False  # it says the same next time, so it asks ever less often
        return welcomed

    async def _read(
        self, stream: Any, outgoing: asyncio.Queue[ToCoordinator], welcomed: bool
    ) -> Any:
        """The next message; a coordinator that is silent for too long is asked, then given up."""
        async with Helpers() as helpers:
            reading = helpers.start(stream.read())
            if not welcomed:
                await asyncio.wait({reading}, timeout=WELCOME_TIMEOUT_S)
            else:
                await asyncio.wait({reading}, timeout=self._check_in_s)
                if not reading.done():
                    with contextlib.suppress(asyncio.QueueFull):
                        outgoing.put_nowait(CheckIn())
                    await asyncio.wait({reading}, timeout=2 * self._check_in_s)
            if not reading.done():
                raise TimeoutError
            return reading.result()

    async def _write(self, stream: Any, outgoing: asyncio.Queue[ToCoordinator]) -> None:
        """All that is said, and a check-in every so often, whatever else is said meanwhile."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(asked_s + self._check_in_s):
                    message = await outgoing.get()
            except TimeoutError:
                message = CheckIn()
            if isinstance(message, CheckIn):
                asked_s = loop.time()
                self._asked_s.append(asked_s)
            try:
                await stream.write(encode(message))
                if isinstance(message, Goodbye):
                    await stream.done_writing()
                    return
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the stream has ended, as whoever reads it hears


class _Outgoing:
    """A message on its way out, as bytes from its first write on."""

    __slots__ = ("__weakref__", "_data", "message")

    def __init__(self, message: FromCoordinator) -> None:
        self.message = message
        self._data: bytes | None = None

    def data(self) -> bytes:
        if self._data is None:
            self._data = encode(self.message)
        return self._data


class _EncodedOnce:
    """What goes to many streams is encoded once, however many wait for it.

    The bytes live for as long as a stream has yet to write them; those of the last topology stay,
    because whoever connects gets it.
    """

    def __init__(self) -> None:
        self._shared: WeakValueDictionary[int, _Outgoing] = WeakValueDictionary()
        self._topology: _Outgoing | None = None

    def outgoing(self, message: FromCoordinator) -> _Outgoing:
        if not isinstance(message, PushTopology | SubscriptionSnapshot | SubscriptionChanges):
            return _Outgoing(message)
        # An id is taken by this very message for as long as its entry lives and holds it.
        known = self._shared.get(id(message))
        if known is None:
            known = self._shared[id(message)] = _Outgoing(message)
        if isinstance(message, PushTopology):
            self._topology = known
        return known


_encoded_once = _EncodedOnce()


class ServerStream:
    """The coordinator's side of one stream; `large` is held by whoever decodes a large message."""

    def __init__(self, stream: Any, large: asyncio.Lock | None = None) -> None:
        self._stream = stream
        self._large = large or asyncio.Lock()
        self._outgoing: asyncio.Queue[_Outgoing | None] = asyncio.Queue(QUEUE_BOUND)
        self._overflowed = asyncio.Event()

    def send(self, message: FromCoordinator) -> None:
        """Queue `message`; a peer that reads too slowly loses the stream, not messages."""
        try:
            self._outgoing.put_nowait(_encoded_once.outgoing(message))
        except asyncio.QueueFull:
            self._overflowed.set()

    def hang(self) -> None:
        """End the stream after what is queued."""
        with contextlib.suppress(asyncio.QueueFull):
            self._outgoing.put_nowait(None)

    async def receive(self) -> ToCoordinator | None:
        """The next message, None at the end; raises InvalidRequest for what can't be read."""
        data = await self._stream.read()
        if data is grpc.aio.EOF:
            return None
        try:
            if len(data) < LARGE_BYTES:
                return decode_to_coordinator(data)
            async with self._large:
                await asyncio.sleep(0)  # everybody else has a turn between two of these
                return decode_to_coordinator(data)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(
                f"what it says can't be read ({error}); run one version of Headgate everywhere"
            ) from error

    async def write_until_hung(self) -> None:
        while not self._overflowed.is_set():
            outgoing = await self._outgoing.get()
            if outgoing is None:
                return
            data = outgoing.data()
            try:
                await self._stream.write(data)
            except grpc.aio.BaseError:
                return  # the peer has gone, as whoever reads from it hears


Serve = Callable[[ServerStream, Hello], Any]
"""Serves one stream from its hello to its end."""


class GrpcControlServer:
    """Accepts control streams on several addresses; each is one call of `serve`."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: grpc.aio.Server | None = None
        self._large = asyncio.Lock()

    async def start(self, host: str, ports: list[int]) -> list[int]:
        """Listen on every port and return those bound; raises OSError for one in use."""
        options = [*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)]
        options += [
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 2_000),
            ("grpc.http2.max_ping_strikes", 0),
        ]
        server = grpc.aio.server(options=options)
        handler = grpc.method_handlers_generic_handler(
            "headgate.Control", {"Session": grpc.stream_stream_rpc_method_handler(self._session)}
        )
        server.add_generic_rpc_handlers((handler,))
        bound = []
        for port in ports:
            try:
                bound.append(server.add_insecure_port(f"{host}:{port}"))
            except RuntimeError as error:
                raise OSError(f"can't listen on {host}:{port}") from error
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)

    async def _session(self, _request: Any, context: Any) -> None:
        stream = ServerStream(context, self._large)
        try:
            hello = await stream.receive()
        except InvalidRequest as error:
            stream.send(Refused(error.message))
            stream.hang()
            await stream.write_until_hung()
            return
        if isinstance(hello, Hello):
            await self._serve(stream, hello)
