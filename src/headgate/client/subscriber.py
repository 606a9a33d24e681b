"""Follows a topic: an async iterator over the events that match, across lost connections.

    async with Subscriber("http://127.0.0.1:8780", "flights", where="alt > 10000") as subscriber:
        async for event in subscriber:
            print(event.key, event.document)

Invariant: per partition, events come in order, none twice and none left out, from the positions of
the first `subscribed` message on; after a lost connection it resumes at its own positions. What
waits here is bounded: a slow loop makes the gateway wait, and the gateway reads on from the log.
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlencode

import msgspec

from headgate import errors
from headgate.client.http import HttpClient, rebuild
from headgate.client.ws_link import WsLink
from headgate.model.api import DEFAULT_URL, ErrorBody, Status
from headgate.model.event import Op


class Subscribed(msgspec.Struct, frozen=True, tag_field="type", tag="subscribed"):
    """Delivery starts after `positions`; nothing after them can be missed."""

    subscription: str
    topic: str
    positions: dict[int, int]


class Event(msgspec.Struct, frozen=True, tag_field="type", tag="event"):
    """One record; `raw` is its document as it was produced."""

    topic: str
    partition: int
    seq: int
    event_id: str
    key: str | None
    collection: str
    op: Op
    raw: msgspec.Raw = msgspec.field(name="document")
    subscriptions: tuple[str, ...] = ()

    @property
    def document(self) -> Any:
        """The document, decoded anew with every access."""
        return msgspec.json.decode(self.raw)


class _Failure(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    error: ErrorBody


_Message = Subscribed | Event | _Failure
_decoder: msgspec.json.Decoder[_Message] = msgspec.json.Decoder(_Message)


class Subscriber:
    """`start` is "now", "earliest" or "PARTITION:SEQ,…" with the first seqs wanted.

    Opening fails at once with a typed error. After that, a lost connection is opened again with
    growing pauses: for ever, or until `retry_attempts` or `retry_for_s` (per outage) are used up.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        topic: str = "",
        *,
        where: str | None = None,
        start: str = "now",
        buffer: int = 1_000,
        retry_attempts: int | None = None,
        retry_for_s: float | None = None,
        retry_first_s: float = 0.1,
        retry_max_s: float = 5.0,
        open_timeout_s: float = 30.0,
        silence_s: float = 75.0,
    ) -> None:
        self.topic = topic
        self.positions: dict[int, int] = {}
        self.reconnects = 0
        self._where = where
        self._start = start
        self._buffer = buffer
        self._retry_attempts = retry_attempts
        self._retry_for_s = retry_for_s
        self._retry_first_s = retry_first_s
        self._retry_max_s = retry_max_s
        self._open_timeout_s = open_timeout_s
        self._silence_s = silence_s
        self._http = HttpClient(url)
        self._ws_url = ""
        self._link: WsLink | None = None
        self._subscribed: Subscribed | None = None
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def subscribed(self) -> Subscribed:
        """The gateway's answer; a new one after every reconnection."""
        if self._subscribed is None:
            raise errors.InvalidRequest("enter the subscriber first: async with Subscriber(…)")
        return self._subscribed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._closed.is_set():
            message = await self._next()
            if isinstance(message, Event):
                if message.seq > self.positions.get(message.partition, 0):
                    self.positions[message.partition] = message.seq
                    return message
            elif isinstance(message, _Failure):
                error = rebuild(message.error)
                if not isinstance(error, errors.NotNow):
                    raise error
                await self._reopen(error)
            elif message == "lost":
                await self._reopen(errors.PeerUnreachable("the gateway closed the connection"))
        raise StopAsyncIteration

    async def close(self) -> None:
        """End; a pending `async for` ends too. Doing it twice is fine."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._link is not None:
            self._link.close()
        await self._http.close()

    # --- one connection --------------------------------------------------------------------------

    async def _next(self) -> _Message | Literal["lost"]:
        if self._link is None:
            return "lost"
        raw = await self._link.receive(self._silence_s)
        if raw is None:
            return "lost"
        try:
            return _decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise errors.InvalidRequest(
                "the gateway sent a message that this version does not know; upgrade headgate"
            ) from error

    async def _open(self) -> None:
        """Connect and wait for `subscribed`."""
        if self._link is not None:
            self._link.abort()
            self._link = None
        await self._learn_ws_url()
        query = {"topic": self.topic, "from": self._resume_from()}
        if self._where is not None:
            query["where"] = self._where
        try:
            async with asyncio.timeout(self._open_timeout_s):
                self._link = await WsLink.open(f"{self._ws_url}?{urlencode(query)}", self._buffer)
                answer = await self._next()
        except TimeoutError as error:
            raise errors.Timeout(
                f"{self._ws_url} gave no answer within {self._open_timeout_s:g} s"
            ) from error
        if isinstance(answer, _Failure):
            raise rebuild(answer.error)
        if not isinstance(answer, Subscribed):
            raise errors.PeerUnreachable(f"{self._ws_url} closed the connection; try again")
        self._subscribed = answer
        for partition, seq in answer.positions.items():
            self.positions.setdefault(partition, seq)

    async def _learn_ws_url(self) -> None:
        try:
            status = await self._http.get("/v1/status", Status)
        except errors.NotNow:
            # Subscribing needs the coordinator too, but the address we had may serve us again.
            if not self._ws_url:
                raise
            return
        if status.ws_url:
            self._ws_url = status.ws_url
        if not self._ws_url:
            raise errors.NotNow("no gateway takes subscribers at the moment; try again")

    def _resume_from(self) -> str:
        if not self.positions:
            return self._start
        return ",".join(f"{number}:{seq + 1}" for number, seq in sorted(self.positions.items()))

    # --- after a lost connection -----------------------------------------------------------------

    async def _reopen(self, reason: errors.NotNow) -> None:
        loop = asyncio.get_running_loop()
        give_up_s = None if self._retry_for_s is None else loop.time() + self._retry_for_s
        attempt = 0
        while not self._closed.is_set():
            late = give_up_s is not None and loop.time() >= give_up_s
            if late or attempt == self._retry_attempts:
                raise reason
            await self._pause(attempt)
            if self._closed.is_set():
                return
            try:
                await self._open()
            except errors.NotNow as error:
                reason = error
                attempt += 1
            else:
                self.reconnects += 1
                return

    async def _pause(self, attempt: int) -> None:
        longest_s = min(self._retry_max_s, self._retry_first_s * 2 ** min(attempt, 16))
        try:
            async with asyncio.timeout(longest_s * random.uniform(0.5, 1.0)):
                await self._closed.wait()
        except TimeoutError:
            return
