"""One WebSocket connection and the subscriptions it carries.

Invariants: names of subscriptions belong to their connection; nobody can touch another's. What
isn't a message of the protocol ends the connection; a request that can't be granted is answered,
and nothing else happens. However a connection ends, its subscriptions end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from headgate import errors
from headgate.decide.starting import parse_positions
from headgate.services.gateway.outlet import Outlet
from headgate.services.gateway.protocol import (
    MAX_FRAME_BYTES,
    Ack,
    Misfit,
    Ping,
    Subscribe,
    Unsubscribe,
    parse,
)
from headgate.services.gateway.questions import question_in
from headgate.services.gateway.subscriber import Subscriber
from headgate.services.gateway.subscriptions import Question, Subscriptions
from headgate.services.gateway.wire import (
    error_message,
    pong_message,
    subscribed_message,
    unsubscribed_message,
)
from headgate.telemetry import LogEvent

log = structlog.get_logger()

MAX_REASON_BYTES = 120
CLOSE_TIMEOUT_S = 5.0


@dataclass(slots=True, eq=False)
class _Place:
    """Where a subscription lives on its connection, from the request to the end."""

    name: str
    only: bool
    """Asked for with the connection itself: its end is the end of the connection."""
    opening: asyncio.Task[None] | None = None
    subscriber: Subscriber | None = None


class Connection(WSListener):
    """`first` is asked at once; an error there refuses the connection."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        connections: set[Connection],
        first: Question | errors.HeadgateError | None,
    ) -> None:
        super().__init__()
        self._subscriptions = subscriptions
        self._connections = connections
        self._first = first
        self._transport: WSTransport | None = None
        self._places: dict[str, _Place] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._outlet: Outlet | None = None
        self._partial = bytearray()
        self._closing = False
        self.gone = asyncio.Event()

    # --- from picows -----------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._outlet = Outlet(transport)
        self._connections.add(self)
        if isinstance(self._first, errors.HeadgateError):
            self.fail(self._first)
        elif self._first is not None:
            self._open(_Place("", only=True), self._first)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == WSMsgType.CLOSE:
            self._closing = True
            self.outlet.close()
            with contextlib.suppress(Exception):
                transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif self._closing:
            return
        elif kind == WSMsgType.BINARY:
            self.fail(errors.InvalidRequest("send JSON in text frames, not binary ones"))
        elif kind in (WSMsgType.TEXT, WSMsgType.CONTINUATION):
            self._receive(frame.get_payload_as_bytes(), last=frame.fin)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._closing = True
        self._connections.discard(self)
        if self._outlet is not None:
            self._outlet.close()
        subscribers = self._begun()
        for place in self._places.values():
            if place.opening is not None:
                place.opening.cancel()
        self._places.clear()
        if subscribers:
            self._leave(self._subscriptions.unsubscribe(*subscribers))
        self.gone.set()

    def pause_writing(self) -> None:
        if self._outlet is not None:
            self._outlet.pause()

    def resume_writing(self) -> None:
        if self._outlet is not None and not self._closing:
            self._outlet.resume(self._begun())

    @property
    def outlet(self) -> Outlet:
        assert self._outlet is not None, "there is one as soon as there is a transport"
        return self._outlet

    # --- what the subscriber says ----------------------------------------------------------------

    def _receive(self, payload: bytes, *, last: bool) -> None:
        if self._partial or not last:
            self._partial += payload
            if len(self._partial) > MAX_FRAME_BYTES:
                self.fail(
                    errors.TooLarge(
                        f"a message is over {MAX_FRAME_BYTES} bytes", limit=MAX_FRAME_BYTES
                    )
                )
                return
            if not last:
                return
            payload = bytes(self._partial)
            self._partial.clear()
        try:
            message = parse(payload)
        except errors.InvalidRequest as error:
            self.fail(error)
            return
        if isinstance(message, Misfit):
            self._answer(error_message(message.error, message.name))
        elif isinstance(message, Ping):
            self._answer(pong_message(message.id))
        else:
            name = message.id if isinstance(message, Subscribe) else message.subscription
            try:
                self._obey(message)
            except errors.HeadgateError as error:
                self._answer(error_message(error, name))

    def _obey(self, message: Subscribe | Unsubscribe | Ack) -> None:
        match message:
            case Subscribe():
                self._check_new(message.id)
                self._open(_Place(message.id, only=False), question_in(message))
            case Unsubscribe():
                self._end(self._place(message.subscription))
                self._answer(unsubscribed_message(message.subscription))
            case Ack():
                subscriber = self._place(message.subscription).subscriber
                if subscriber is None:
                    raise errors.InvalidRequest(
                        f"subscription {message.subscription} has not begun; nothing was sent"
                    )
                subscriber.acknowledge(_positions(message.positions))

    def _check_new(self, name: str) -> None:
        if name in self._places:
            raise errors.InvalidRequest(
                f"this connection has a subscription {name} already; choose another id or "
                "unsubscribe first",
                parameter="id",
            )
        bound = self._subscriptions.bounds.per_connection
        if len(self._places) + len(self._leaving) >= bound:
            raise errors.TooLarge(
                f"this connection has {bound} subscriptions, its most "
                "(gateway.max_subscriptions); end one, or open another connection",
                limit=bound,
            )

    def _place(self, name: str) -> _Place:
        place = self._places.get(name)
        if place is None:
            raise errors.NotFound(f"this connection has no subscription {name}")
        return place

    # --- subscriptions ---------------------------------------------------------------------------

    def _open(self, place: _Place, question: Question) -> None:
        self._rearrange(joining=True)
        self._places[place.name] = place
        place.opening = asyncio.create_task(
            self._subscribe(place, question), name="subscribe over WebSocket"
        )

    async def _subscribe(self, place: _Place, question: Question) -> None:
        try:
            subscriber = await self._subscriptions.subscribe(question)
        except errors.HeadgateError as error:
            self._refuse(place, error)
            return
        except Exception:
            log.exception(LogEvent.UNEXPECTED, topic=question.topic)
            self._refuse(
                place,
                errors.HeadgateError("something went wrong here; the server's log says what"),
            )
            return
        place.opening = None
        place.subscriber = subscriber
        if place.only:
            del self._places[place.name]
            place.name = subscriber.name
            self._places[place.name] = place
        self._answer(subscribed_message(subscriber.name, subscriber.topic, subscriber.starts))
        self._subscriptions.begin(subscriber, partial(self._ready, place, subscriber))
        self._rearrange()

    def _refuse(self, place: _Place, error: errors.HeadgateError) -> None:
        self._places.pop(place.name, None)
        self._rearrange()
        if place.only:
            self.fail(error)
        else:
            self._answer(error_message(error, place.name))

    def _end(self, place: _Place) -> None:
        """The slot is free for others once the coordinator was told, or would be told for ever."""
        del self._places[place.name]
        self._rearrange()
        if place.opening is not None:
            place.opening.cancel()
            self._remember(place.opening)
        elif place.subscriber is not None:
            self._leave(self._subscriptions.unsubscribe(place.subscriber))

    def _rearrange(self, *, joining: bool = False) -> None:
        """One that is alone is written to at once; several wait for what they may share."""
        if len(self._places) == 1:
            (only,) = self._begun() or (None,)
            if only is not None:
                only.outlet = None if joining else self._outlet

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        self._remember(asyncio.create_task(work, name="unsubscribe"))

    def _remember(self, task: asyncio.Task[None]) -> None:
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # --- what the subscriber hears ---------------------------------------------------------------

    def _ready(self, place: _Place, subscriber: Subscriber) -> None:
        """There may be something to send, or the subscriber was closed."""
        if self._closing:
            return
        if subscriber.closing is not None:
            self._closed(place, subscriber.closing, whole=subscriber.ends_connection)
        else:
            self.outlet.offer(subscriber, alone=len(self._places) == 1)

    def _closed(self, place: _Place, reason: errors.HeadgateError, *, whole: bool) -> None:
        if whole or place.only:
            self.fail(reason)
            return
        self._end(place)
        self._answer(error_message(reason, place.name))

    def _begun(self) -> list[Subscriber]:
        return [one.subscriber for one in self._places.values() if one.subscriber is not None]

    def _answer(self, message: bytes) -> None:
        if self._outlet is not None and not self._closing:
            self._outlet.answer(message)

    # --- the end ---------------------------------------------------------------------------------

    def fail(self, error: errors.HeadgateError) -> None:
        """Say why, close, and don't wait long for a peer that doesn't read."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        self.outlet.free = False
        self.outlet.send(error_message(error))
        self._transport.send_close(_close_code(error), _reason(error))
        self._transport.disconnect()
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.disconnect(graceful=False)


def _positions(positions: dict[str, int]) -> dict[int, int]:
    text = ",".join(f"{partition}:{seq}" for partition, seq in positions.items())
    return parse_positions(text, "positions")


def _close_code(error: errors.HeadgateError) -> Any:
    if error.details.get("reason") == "going_away":
        return WSCloseCode.GOING_AWAY
    if isinstance(error, errors.TooLarge):
        return WSCloseCode.MESSAGE_TOO_BIG
    if isinstance(error, errors.CallerError):
        return WSCloseCode.POLICY_VIOLATION
    if isinstance(error, errors.NotNow):
        return WSCloseCode.TRY_AGAIN_LATER
    return WSCloseCode.INTERNAL_ERROR


def _reason(error: errors.HeadgateError) -> bytes:
    return error.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
