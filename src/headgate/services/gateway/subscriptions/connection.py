"""One connection and the subscriptions it carries.

Invariants: names of subscriptions belong to their connection; nobody can touch another's. What
isn't a message of the protocol ends the connection; a request that can't be granted is answered,
and nothing else happens. However a connection ends, its subscriptions end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headgate import errors
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.subscriptions.placing import Redirect
from headgate.services.gateway.subscriptions.protocol import (
    Ack,
    Misfit,
    Ping,
    Subscribe,
    Unsubscribe,
    parse,
    positions_in,
)
from headgate.services.gateway.subscriptions.requests import question_in
from headgate.services.gateway.subscriptions.subscriptions import SubscribeRequest, Subscriptions
from headgate.services.gateway.text_messages import TextConnection
from headgate.services.gateway.wire import (
    CLOSE_REDIRECT,
    error_message,
    pong_message,
    redirect_message,
    subscribed_message,
    unsubscribed_message,
)


@dataclass(slots=True, eq=False)
class _Place:
    """Where a subscription lives on its connection, from the request to the end."""

    name: str
    only: bool
    """Asked for with the connection itself: its end is the end of the connection."""
    opening: asyncio.Task[None] | None = None
    subscriber: LiveSubscription | None = None


class Connection(TextConnection):
    """`first` is asked at once; an error there refuses the connection, a redirect ends it. The
    subscriptions are those of `subscriber`, where subscribers are placed by their ids."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        connections: dict[TextConnection, None],
        first: SubscribeRequest | Redirect | errors.HeadgateError | None,
        subscriber: str = "",
        entry: Entry | None = None,
    ) -> None:
        super().__init__(connections, entry)
        self._subscriptions = subscriptions
        self._first = first
        self._subscriber = subscriber
        self._places: dict[str, _Place] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    # --- from the wire ---------------------------------------------------------------------------

    def begun(self) -> None:
        if isinstance(self._first, errors.HeadgateError):
            self.fail(self._first)
        elif isinstance(self._first, Redirect):
            self.close(CLOSE_REDIRECT, redirect_message(self._first))
        elif self._first is not None:
            self._open(_Place("", only=True), self._first)

    def ended(self) -> None:
        subscribers = self._begun()
        for place in self._places.values():
            if place.opening is not None:
                place.opening.cancel()
        self._places.clear()
        if subscribers:
            self._leave(self._subscriptions.unsubscribe(*subscribers))

    def writable(self) -> None:
        self.outlet.resume(self._begun())

    # --- what the subscriber says ----------------------------------------------------------------

    def said(self, payload: bytes) -> None:
        try:
            message = parse(payload)
        except errors.InvalidRequest as error:
            self.fail(error)
            return
        if isinstance(message, Misfit):
            self.answer(error_message(message.error, message.name))
        elif isinstance(message, Ping):
            self.answer(pong_message(message.id))
        else:
            name = message.id if isinstance(message, Subscribe) else message.subscription
            try:
                self._obey(message)
            except errors.HeadgateError as error:
                self.answer(error_message(error, name))

    def _obey(self, message: Subscribe | Unsubscribe | Ack) -> None:
        match message:
            case Subscribe():
                self._check_new(message.id)
                self._open(_Place(message.id, only=False), question_in(message))
            case Unsubscribe():
                self._end(self._place(message.subscription))
                self.answer(unsubscribed_message(message.subscription))
            case Ack():
                subscriber = self._place(message.subscription).subscriber
                if subscriber is None:
                    raise errors.InvalidRequest(
                        f"subscription {message.subscription} has not begun; nothing was sent"
                    )
                subscriber.acknowledge(positions_in(message.positions))

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

    def _open(self, place: _Place, question: SubscribeRequest) -> None:
        self._rearrange(joining=True)
        self._places[place.name] = place
        place.opening = self._subscriptions.crew.start(
            "subscribing", self._subscribe(place, question), about=question.topic
        )

    async def _subscribe(self, place: _Place, question: SubscribeRequest) -> None:
        entry = self.entry
        question = replace(
            question,
            subscriber=self._subscriber,
            principal=entry.principal,
            party=entry.party,
        )
        try:
            subscriber = await self._subscriptions.subscribe(question)
        except errors.HeadgateError as error:
            self._refuse(place, error)
            return
        except Exception:
            self._refuse(
                place,
                errors.HeadgateError("something went wrong here; the server's log says what"),
            )
            raise
        place.opening = None
        place.subscriber = subscriber
        if place.only:
            del self._places[place.name]
            place.name = subscriber.name
            self._places[place.name] = place
        positions = subscriber.feed.sent()
        self.answer(subscribed_message(subscriber.name, subscriber.topic, positions))
        ready = partial(self._ready, place, subscriber)
        self._subscriptions.begin(subscriber, ready, self.outlet)
        self._rearrange()

    def _refuse(self, place: _Place, error: errors.HeadgateError) -> None:
        self.entry.refused(error)
        self._places.pop(place.name, None)
        self._rearrange()
        if place.only:
            self.fail(error)
        else:
            self.answer(error_message(error, place.name))

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
        if self._outlet is not None:
            alone = self._begun() if len(self._places) == 1 and not joining else []
            self._outlet.let_through(alone[0] if alone else None)

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        self._remember(self._subscriptions.crew.start("unsubscribing", work))

    def _remember(self, task: asyncio.Task[None]) -> None:
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # --- what the subscriber hears ---------------------------------------------------------------

    def _ready(self, place: _Place, subscriber: LiveSubscription) -> None:
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
        self.answer(error_message(reason, place.name))

    def _begun(self) -> list[LiveSubscription]:
        return [one.subscriber for one in self._places.values() if one.subscriber is not None]
