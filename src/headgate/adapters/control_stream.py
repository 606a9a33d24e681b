"""Both ends of a control stream, whatever carries its bytes.

Messages are msgpack of the tagged unions in model/control/, one per piece of bytes, so there is no
second schema to keep in step. A node's session reconnects for as long as it is open and checks
in by itself, because a node that forgets to is indistinguishable from a dead one.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec

from headgate.errors import InvalidRequest, Unauthorized
from headgate.model.control.from_coordinator import (
    CheckedIn,
    FromCoordinator,
    NotLeader,
    PushTopology,
    Refused,
    SubscriptionChanges,
    SubscriptionSnapshot,
    Welcome,
)
from headgate.model.control.to_coordinator import CheckIn, Goodbye, Hello, ToCoordinator
from headgate.ports.control import Serve
from headgate.tasks import Crew, Helpers

QUEUE_BOUND = 10_000
LARGE_BYTES = 64 << 10
"""From this size on, messages are decoded one at a time, those of all nodes together."""
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 2.0
GOODBYE_TIMEOUT_S = 2.0
HELLO_TIMEOUT_S = 10.0
"""A node that connects says its hello at once; a stream without one is no node's, and is ended."""
WELCOME_TIMEOUT_S = 5.0
"""A frozen coordinator still accepts connections; a node that gets no answer asks the next one."""

SILENT_CHECK_INS = 3
"""A coordinator that says nothing for as long as so many of them take is as good as gone."""

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading a message raises: what isn't of its form, is no UTF-8, or nests without end."""

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
decode_from_coordinator = msgspec.msgpack.Decoder(FromCoordinator).decode
decode_to_coordinator: Callable[[bytes], ToCoordinator] = msgspec.msgpack.Decoder(
    ToCoordinator
).decode


class Pipe(Protocol):
    """One end of a connection: pieces of bytes, whole and in order. Both calls raise
    ConnectionError where it is broken, and may be cancelled only with the connection."""

    async def read(self) -> bytes | None:
        """The next piece; None when the other end writes no more."""

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more."""


class NodePipe(Pipe, Protocol):
    async def done_writing(self) -> None:
        """Nothing more comes from here."""


Dial = Callable[[str], AbstractAsyncContextManager[NodePipe]]
"""Connects to an address, for as long as the block runs; raises ConnectionError, then or later."""


class StreamSession:
    """A node's side of the stream; implements ports.control.ControlSession.

    `addresses` are those of all coordinators, with commas in between; one that doesn't lead says
    who does, and one that gives no answer is left for the next.
    """

    def __init__(
        self,
        addresses: str,
        hello: Callable[[], Hello],
        dial: Dial,
        *,
        jitter: Callable[[], float],
    ) -> None:
        self._addresses = addresses.split(",")
        self._turn = 0
        self._leader = ""
        self._hello = hello
        self._dial = dial
        self._jitter = jitter
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
            # The coordinator doesn't read: as good as no connection. What was to be said is said
            # with the next one, so that has to come.
            self._outgoing = None
            return False
        return True

    async def messages(self) -> AsyncIterator[FromCoordinator]:
        while (message := await self._incoming.get()) is not None:
            yield message

    async def close(self, *, returns: bool = False) -> None:
        if self._closing:
            return
        self._closing = True
        said = await self.send(Goodbye(returns))
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
            except (OSError, TimeoutError, *UNREADABLE):
                pass  # whatever it was, the next connection starts afresh
            if self._closing:
                return
            await asyncio.sleep(backoff_s * (0.5 + 0.5 * self._jitter()))
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    def _next_address(self) -> str:
        """The coordinator that is said to lead, once; then all in turn."""
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
        async with self._dial(address) as pipe:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                await pipe.write(encode(self._hello()))
            outgoing: asyncio.Queue[ToCoordinator] = asyncio.Queue(QUEUE_BOUND)
            self._asked_s.clear()
            async with Helpers() as helpers:
                writing = helpers.start(self._write(pipe, outgoing))
                try:
                    welcomed = await self._take_in(pipe, outgoing, writing)
                finally:
                    self._outgoing = None
        return welcomed

    async def _take_in(
        self, pipe: Pipe, outgoing: asyncio.Queue[ToCoordinator], writing: asyncio.Future[None]
    ) -> bool:
        """All that comes, until the stream ends; True when the coordinator welcomed us."""
        welcomed = False
        while (data := await self._read(pipe, welcomed)) is not None:
            if welcomed and self._outgoing is None:
                raise ConnectionError("there was more to say than the coordinator takes")
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

    async def _read(self, pipe: Pipe, welcomed: bool) -> bytes | None:
        """The next message. A coordinator answers every check-in: one that is silent for too long
        is given up, and the connection with it."""
        patience_s = SILENT_CHECK_INS * self._check_in_s if welcomed else WELCOME_TIMEOUT_S
        async with asyncio.timeout(patience_s):
            return await pipe.read()

    async def _write(self, pipe: NodePipe, outgoing: asyncio.Queue[ToCoordinator]) -> None:
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
                await pipe.write(encode(message))
                if isinstance(message, Goodbye):
                    await pipe.done_writing()
                    return
            except ConnectionError:
                return  # the stream has ended, as its reader hears


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
    because every node that connects gets it.
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
    """The coordinator's side of one stream; implements ports.control.ControlStream. `large` is held
    while a large message is decoded."""

    def __init__(self, pipe: Pipe, large: asyncio.Lock | None = None) -> None:
        self._pipe = pipe
        self._large = large or asyncio.Lock()
        self._outgoing: asyncio.Queue[_Outgoing | None] = asyncio.Queue(QUEUE_BOUND)
        self._overflowed = asyncio.Event()

    def send(self, message: FromCoordinator) -> None:
        try:
            self._outgoing.put_nowait(_encoded_once.outgoing(message))
        except asyncio.QueueFull:
            self._overflowed.set()

    def hang(self) -> None:
        try:
            self._outgoing.put_nowait(None)
        except asyncio.QueueFull:
            self._overflowed.set()

    async def receive(self, *, within_s: float | None = None) -> ToCoordinator | None:
        """As the port says; None also where nothing has come `within_s`, and then the stream has to
        end."""
        try:
            async with asyncio.timeout(within_s):
                data = await self._pipe.read()
        except (ConnectionError, TimeoutError):
            return None
        if data is None:
            return None
        try:
            if len(data) < LARGE_BYTES:
                return decode_to_coordinator(data)
            async with self._large:
                await asyncio.sleep(0)  # everybody else has a turn between two of these
                return decode_to_coordinator(data)
        except UNREADABLE as error:
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
                await self._pipe.write(data)
            except ConnectionError:
                return  # the peer has gone, as the reader of the pipe hears


async def serve_pipe(
    pipe: Pipe,
    serve: Serve,
    large: asyncio.Lock,
    *,
    caller: str | None = None,
    on_other_role: Callable[[Unauthorized], None] | None = None,
) -> None:
    """One stream at the coordinator, from the first byte to its end. `caller` is the role whose
    pass was shown (None: no pass is asked for): a node that says hello as another role is refused,
    of which `on_other_role` hears."""
    stream = ServerStream(pipe, large)
    try:
        hello = await stream.receive(within_s=HELLO_TIMEOUT_S)
    except InvalidRequest as error:
        await _refuse(stream, error.message)
        return
    if not isinstance(hello, Hello):
        return
    if caller not in (None, hello.role):
        other = Unauthorized(
            f"a node that shows the pass of a {caller} can't be a {hello.role} on that stream"
        )
        if on_other_role is not None:
            on_other_role(other)
        await _refuse(stream, other.message)
        return
    await serve(stream, hello)


async def _refuse(stream: ServerStream, reason: str) -> None:
    stream.send(Refused(reason))
    stream.hang()
    await stream.write_until_hung()
