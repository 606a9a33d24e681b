"""HTTP as values: a request, a response, a route.

Invariant: nothing here knows which server carries it; a handler can be called with a `Request` made
by hand. A body is read at most once and never beyond the limit its reader names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from headgate import errors
from headgate.model.access import Principal

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
"""One JSON value per line."""
MAX_QUERY_BYTES = 64 * 1024

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
"""Where body chunks, and later the disconnect, come from (the receive channel of ASGI)."""


class Headers:
    """Header fields by case-insensitive name; the first of several with one name wins `get`."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = [(name.lower(), value) for name, value in pairs]

    @classmethod
    def lowered(cls, pairs: list[tuple[str, str]]) -> Headers:
        """Of pairs whose names are in lower case already."""
        headers = cls.__new__(cls)
        headers._pairs = pairs
        return headers

    def get(self, name: str, default: str = "") -> str:
        wanted = name.lower()
        for key, value in self._pairs:
            if key == wanted:
                return value
        return default

    def items(self) -> list[tuple[str, str]]:
        return list(self._pairs)


class Request(msgspec.Struct, frozen=True):
    """One request. `path` is without percent-encoding, `raw_path` as it came; `params` are the
    values of the route template's `{names}`, once a route is found; `principal` is who asks, where
    anybody has to say so, and `peer` the address that the connection came from."""

    method: str
    path: str
    receive: Receive
    raw_path: str = ""
    query_string: str = ""
    headers: Headers = Headers()  # nobody changes it
    params: Mapping[str, str] = {}
    principal: Principal | None = None
    peer: str = ""

    @classmethod
    def to(
        cls,
        method: str,
        raw_path: str,
        query_string: str,
        receive: Receive,
        headers: Headers,
        peer: str = "",
    ) -> Request:
        """A request whose path and query are as they stand in a URL."""
        path = unquote(raw_path) if "%" in raw_path else raw_path
        return cls(method, path, receive, raw_path, query_string, headers, peer=peer)

    @property
    def query(self) -> dict[str, str]:
        """Query parameters; of a repeated one the last wins."""
        if len(self.query_string) > MAX_QUERY_BYTES:
            raise errors.TooLarge(f"the query string is longer than {MAX_QUERY_BYTES} bytes")
        try:
            pairs = parse_qsl(self.query_string, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError as error:
            raise errors.InvalidRequest("the query string is not percent-encoded UTF-8") from error
        return dict(pairs)

    async def body(
        self, limit_bytes: int, *, arrived: Callable[[int, bool], None] | None = None
    ) -> bytes:
        """The whole body; TooLarge as soon as it is known to exceed `limit_bytes`. `arrived` hears
        how much there is, and whether that is all; what it raises is raised."""
        declared = self.headers.get("content-length")
        if declared.isdigit() and int(declared) > limit_bytes:
            raise _too_large(limit_bytes)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise errors.PeerUnreachable("the client went away while it sent its request")
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            is_whole = not message.get("more_body", False)
            if arrived is not None:
                arrived(size, is_whole)
            chunks.append(chunk)
            if is_whole:
                return b"".join(chunks)

    async def decode(self, kind: type[T], limit_bytes: int) -> T:
        """The body as JSON of type `kind`; InvalidRequest says what is wrong with it."""
        raw = await self.body(limit_bytes)
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise errors.InvalidRequest(f"the request body is not valid: {error}") from error

    async def disconnected(self) -> None:
        """Returns when the client has gone; never before the body was read or dropped."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _too_large(limit_bytes: int) -> errors.TooLarge:
    return errors.TooLarge(
        f"the request body is larger than {limit_bytes} bytes; send less at once",
        limit_bytes=limit_bytes,
    )


class Response(msgspec.Struct, frozen=True):
    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = {}


class StreamResponse(msgspec.Struct, frozen=True):
    """A body that is sent chunk by chunk, each only when the client has room for it.

    `chunks` is closed (`aclose`, where it has one) when the client goes away or the server stops.
    """

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


Answer = Response | StreamResponse
Handler = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter, for the published description of a route."""

    name: str
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """`path` is a template such as `/v1/topics/{name}`; only public routes are published. With
    `also_status` the response has the same body under that status too. `accepts` are the media
    types that a body may be said to be, where that matters: none of them is one that a browser lets
    any page send unasked. `callers` are the roles that may call it where there is a cluster token;
    without any it isn't for roles alone."""

    method: str
    path: str
    handler: Handler
    summary: str = ""
    request: Any = None
    response: Any = None
    public: bool = True
    status: int = 200
    also_status: int | None = None
    parameters: tuple[Parameter, ...] = ()
    response_content_type: str = JSON
    accepts: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(status, encode_json(value), JSON, headers or {})


def encode_json(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


def error_response(error: errors.HeadgateError) -> Response:
    """The documented error body, with Retry-After for what may succeed later."""
    body = {"error": error_body(error)}
    headers = {}
    if isinstance(error, errors.NotNow):
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    if isinstance(error, errors.MethodNotAllowed):
        headers["allow"] = error.allow
    if isinstance(error, errors.Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return json_response(body, error.status, headers)


def error_body(error: errors.HeadgateError) -> dict[str, object]:
    return {"code": error.code, "message": error.message, "details": error.details}
