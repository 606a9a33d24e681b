"""Subscribers and consumers that connect to a gateway: who is let in, and how everybody leaves.

Invariant: there are never more connections than the gateway may have subscribers; one that speaks
another version of the protocol is told which one is spoken here; a web page that may not call is
refused before its connection is one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from urllib.parse import parse_qsl

from headgate import errors
from headgate.decide.http.web_pages import WebPages
from headgate.decide.operations.auditing import refusal_line
from headgate.model.access import Principal
from headgate.ports.audit import AuditTrail, NoAuditTrail
from headgate.ports.connection import ConnectionListener, Peer, Reception, Visit
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.groups.connection import ConsumerConnection
from headgate.services.gateway.groups.consumers import Consumers
from headgate.services.gateway.identifying import IdentifiedPeer
from headgate.services.gateway.rights import Rights
from headgate.services.gateway.subscriptions.connection import Connection
from headgate.services.gateway.subscriptions.placing import Redirect, newcomer_of
from headgate.services.gateway.subscriptions.protocol import MAX_FRAME_BYTES
from headgate.services.gateway.subscriptions.requests import (
    SUBPROTOCOL,
    VERSION,
    check_parameters,
    check_version,
    question_of,
)
from headgate.services.gateway.subscriptions.subscriptions import SubscribeRequest, Subscriptions
from headgate.services.gateway.text_messages import TextConnection

PATH = "/v1/subscribe"
CONSUME_PATH = "/v1/consume"


class WebSocketServer:
    def __init__(
        self,
        listener: ConnectionListener,
        subscriptions: Subscriptions,
        consumers: Consumers,
        rights: Rights | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        self._audit = audit or NoAuditTrail()
        self._listener = listener
        self._rights = rights
        self._subscriptions = subscriptions
        self._consumers = consumers
        self._pages = WebPages()
        self.connections: dict[TextConnection, None] = {}
        self._newcomers: dict[IdentifiedPeer, None] = {}

    async def start(self, host: str, port: int, pages: WebPages, *, setting: str = "") -> int:
        self._pages = pages
        return await self._listener.start(
            Reception(self._admit, SUBPROTOCOL, MAX_FRAME_BYTES), host, port, setting=setting
        )

    def close_all(self, reason: errors.HeadgateError) -> None:
        peers: tuple[Peer, ...] = (*self._newcomers, *self.connections)
        for peer in peers:
            peer.fail(reason)

    async def stop(self, timeout_s: float) -> None:
        """Stop listening and wait for the connections, which were told to end, to be gone."""
        self._listener.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for connection in tuple(self.connections):
                    await connection.gone.wait()
        for connection in tuple(self.connections):
            connection.abort()

    # --- who comes in ----------------------------------------------------------------------------

    def _admit(self, visit: Visit) -> Peer:
        try:
            return self._admitted(visit)
        except errors.HeadgateError as error:
            self._refused(visit, error, None, "")
            raise

    def _refused(
        self, visit: Visit, error: errors.HeadgateError, who: Principal | None, address: str
    ) -> None:
        line = refusal_line(f"WebSocket {visit.path}", error, who, address)
        if line is not None:
            self._audit.note(line)

    def _entry(self, visit: Visit, principal: Principal | None) -> Entry:
        holdings = self._subscriptions.holdings
        return Entry(holdings, principal, on_refused=partial(self._refused, visit))

    def _admitted(self, visit: Visit) -> Peer:
        refusal = self._pages.refusal(host=visit.host, origin=visit.origin)
        if refusal is not None:
            raise refusal
        if visit.path not in (PATH, CONSUME_PATH):
            raise errors.NotFound(
                f"WebSocket subscribers connect to {PATH}, consumers of a group to "
                f"{CONSUME_PATH}, nothing else"
            )
        if visit.subprotocols and SUBPROTOCOL not in visit.subprotocols:
            check_version(visit.subprotocols[0])
        if self._rights is None:
            return self._made(visit, None)
        while len(self._newcomers) >= self._subscriptions.bounds.subscribers:
            next(iter(self._newcomers)).give_way()  # the client that has said nothing for longest
        return IdentifiedPeer(
            self._rights,
            partial(self._made, visit),
            said=visit.authorization,
            crew=self._subscriptions.crew,
            newcomers=self._newcomers,
            entry=self._entry(visit, None),
        )

    def _made(self, visit: Visit, principal: Principal | None) -> TextConnection:
        entry = self._entry(visit, principal)
        if visit.path == CONSUME_PATH:
            return self._consumer_connection(visit.query, entry)
        return self._connection(visit.query, entry)

    def _connection(self, query: str, entry: Entry) -> Connection:
        """What is wrong with a query is said over the connection, where every client can read
        it."""
        first: SubscribeRequest | Redirect | errors.HeadgateError | None
        subscriber = ""
        try:
            self._check_room()
            parameters = _parameters(query)
            first = _first_question(parameters)
            admitted = self._subscriptions.placing.admit(newcomer_of(parameters))
            if isinstance(admitted, Redirect):
                first = admitted
            else:
                subscriber = admitted
        except errors.HeadgateError as error:
            first = error
        return Connection(self._subscriptions, self.connections, first, subscriber, entry)

    def _consumer_connection(self, query: str, entry: Entry) -> ConsumerConnection:
        refusal: errors.HeadgateError | None = None
        try:
            self._check_room()
            if unknown := sorted(set(_parameters(query)) - {"v"}):
                raise errors.InvalidRequest(
                    f"consume has no parameter {unknown[0][:100]}; it has v, and the rest is said "
                    "in a join message",
                    parameter=unknown[0][:100],
                )
            check_version(_parameters(query).get("v") or VERSION)
        except errors.HeadgateError as error:
            refusal = error
        return ConsumerConnection(self._consumers, self.connections, refusal, entry)

    def _check_room(self) -> None:
        if len(self.connections) >= self._subscriptions.bounds.subscribers:
            raise errors.Overloaded(
                f"this gateway has {len(self.connections)} connections, its most "
                "(gateway.max_subscribers); try again later"
            )


def _first_question(query: Mapping[str, str]) -> SubscribeRequest | None:
    """A connection without a question waits for messages."""
    check_parameters(query)
    return None if not set(query) - {"v", "id", "unreachable"} else question_of(query)


def _parameters(query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except ValueError as error:
        raise errors.InvalidRequest("the query string is not percent-encoded UTF-8") from error
