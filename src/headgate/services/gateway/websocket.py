"""The WebSocket listener of a gateway, on picows: who is let in, and how everybody leaves.

Invariant: there are never more connections than the gateway may have subscribers; one that speaks
another version of the protocol is told which one is spoken here; a web page that may not call is
refused before its connection is one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from picows import (
    WSListener,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from headgate import errors
from headgate.adapters.http.listening import listen
from headgate.decide.web_pages import WebPages
from headgate.model.http import encode_json, error_body
from headgate.services.gateway.connection import Connection
from headgate.services.gateway.consumer_connection import ConsumerConnection
from headgate.services.gateway.consumers import Consumers
from headgate.services.gateway.framing import TextConnection
from headgate.services.gateway.placing import Redirect, newcomer_of
from headgate.services.gateway.protocol import MAX_FRAME_BYTES
from headgate.services.gateway.questions import (
    SUBPROTOCOL,
    VERSION,
    check_parameters,
    check_version,
    question_of,
)
from headgate.services.gateway.subscriptions import Question, Subscriptions

PATH = "/v1/subscribe"
CONSUME_PATH = "/v1/consume"


@dataclass(frozen=True, slots=True)
class PingTimes:
    """A peer that was silent for `after_idle_s` is pinged, and has `timeout_s` to answer. Others
    are pinged as often, and needn't."""

    after_idle_s: float = 30.0
    timeout_s: float = 30.0


class WebSocketServer:
    def __init__(
        self, subscriptions: Subscriptions, consumers: Consumers, *, pings: PingTimes
    ) -> None:
        self._subscriptions = subscriptions
        self._consumers = consumers
        self._pings = pings
        self._pages = WebPages()
        self._server: asyncio.Server | None = None
        self.connections: set[TextConnection] = set()

    async def start(self, host: str, port: int, pages: WebPages, *, setting: str = "") -> int:
        self._pages = pages
        listener = listen(host, port, setting=setting)
        bound: int = listener.getsockname()[1]
        self._server = await ws_create_server(
            self._accept,
            sock=listener,
            enable_auto_ping=True,
            auto_ping_idle_timeout=self._pings.after_idle_s,
            auto_ping_reply_timeout=self._pings.timeout_s,
            max_frame_size=MAX_FRAME_BYTES,
            logger_name="gateway",
        )
        return bound

    def close_all(self, reason: errors.HeadgateError) -> None:
        for connection in tuple(self.connections):
            connection.fail(reason)

    async def stop(self, timeout_s: float) -> None:
        """Stop listening and wait for the connections, which were told to end, to be gone."""
        if self._server is None:
            return
        self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for connection in tuple(self.connections):
                    await connection.gone.wait()
        for connection in tuple(self.connections):
            connection.abort()

    # --- who comes in ----------------------------------------------------------------------------

    def _accept(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        target = urlsplit(request.path.decode("latin-1"))
        offered = [
            name.strip()
            for header in request.headers.getall("sec-websocket-protocol", [])
            for name in header.split(",")
        ]
        try:
            headers = request.headers
            refusal = self._pages.refusal(
                host=headers.get("host", ""), origin=headers.get("origin", "")
            )
            if refusal is not None:
                raise refusal
            if target.path not in (PATH, CONSUME_PATH):
                raise errors.NotFound(
                    f"WebSocket subscribers connect to {PATH}, consumers of a group to "
                    f"{CONSUME_PATH}, nothing else"
                )
            if offered and SUBPROTOCOL not in offered:
                check_version(offered[0])
        except errors.HeadgateError as error:
            return _refused(error)
        connection: WSListener
        if target.path == CONSUME_PATH:
            connection = self._consumer_connection(target.query)
        else:
            connection = self._connection(target.query)
        if not offered:
            return connection
        chosen = WSUpgradeResponse.create_101_response({"Sec-WebSocket-Protocol": SUBPROTOCOL})
        return WSUpgradeResponseWithListener(chosen, connection)

    def _connection(self, query: str) -> Connection:
        """What is wrong with a query is said over the connection, where every client can read
        it."""
        first: Question | Redirect | errors.HeadgateError | None
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
        every_s = self._pings.after_idle_s
        return Connection(
            self._subscriptions, self.connections, first, subscriber, ping_every_s=every_s
        )

    def _consumer_connection(self, query: str) -> ConsumerConnection:
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
        every_s = self._pings.after_idle_s
        return ConsumerConnection(self._consumers, self.connections, refusal, ping_every_s=every_s)

    def _check_room(self) -> None:
        if len(self.connections) >= self._subscriptions.bounds.subscribers:
            raise errors.Overloaded(
                f"this gateway has {len(self.connections)} connections, its most "
                "(gateway.max_subscribers); try again later"
            )


def _first_question(query: Mapping[str, str]) -> Question | None:
    """A connection without a question waits for messages."""
    check_parameters(query)
    return None if not set(query) - {"v", "id", "unreachable"} else question_of(query)


def _parameters(query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except ValueError as error:
        raise errors.InvalidRequest("the query string is not percent-encoded UTF-8") from error


def _refused(error: errors.HeadgateError) -> WSUpgradeResponseWithListener:
    body = encode_json({"error": error_body(error)})
    refusal = WSUpgradeResponse.create_error_response(
        error.status, body, {"content-type": "application/json"}
    )
    return WSUpgradeResponseWithListener(refusal, None)
