"""JSON over HTTP to a Headgate address, for the clients and the commands.

Invariant: whatever goes wrong leaves here as an error of `headgate.errors`: the server's own errors
are rebuilt as the class that was raised over there, a silent or foreign address becomes a sentence
that says what to do. The detail `no_answer` is there when the other side said nothing that could
be understood: "not sent", or "unknown" where it may have done what it was asked. Never sends
anything twice: who calls knows whether that is safe. But with `patience_s` it waits for so long for
an address at which nothing answers: it may be restarting.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from headgate import errors
from headgate.client.credentials import Credentials, took_too_long
from headgate.client.defaults import open_calls
from headgate.errors import ANOTHER_ADDRESS
from headgate.model.api import DEFAULT_URL, NAME_PATTERN, NAME_RULE, ErrorAnswer
from headgate.model.http import JSON, Response
from headgate.model.refusals import rebuild
from headgate.ports.http import OpenCalls

Answer = TypeVar("Answer")

AGAIN_S = 0.25
"""Between two tries of an address at which nothing answers."""

Headers = tuple[tuple[str, str], ...]
Held = Callable[[bool], object]
"""Told True where nothing of a request is under way, nor was taken, because a token is waited for,
and False as it goes on."""
_Send = Callable[[Headers], Awaitable[Response]]

_NAME = re.compile(NAME_PATTERN)
_BLANK = re.compile(r"\s")


def _nobody_cares(_is_held: bool) -> None: ...


class HttpClient:
    """One address and its pool of connections."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 3.0,
        patience_s: float = 0.0,
        open_calls: OpenCalls = open_calls,
        credentials: Credentials | None = None,
    ) -> None:
        self.url = _checked(url)
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._calls = open_calls(connect_timeout_s=connect_timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._calls.close()

    async def get(self, path: str, answer: type[Answer]) -> Answer:
        return self._parse(await self.call("GET", path), answer)

    async def post(
        self,
        path: str,
        body: object,
        answer: type[Answer],
        *,
        timeout_s: float | None = None,
        send_within_s: float = math.inf,
        held: Held = _nobody_cares,
    ) -> Answer:
        encoded = msgspec.json.encode(body)
        found = await self.call(
            "POST", path, encoded, timeout_s=timeout_s, send_within_s=send_within_s, held=held
        )
        return self._parse(found, answer)

    async def delete(self, path: str) -> None:
        await self.call("DELETE", path)

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
        send_within_s: float = math.inf,
        held: Held = _nobody_cares,
    ) -> bytes:
        """The body of a good answer; raises the error that a bad one stands for. Nothing is sent
        after `send_within_s`, however long a token takes: raises Timeout then. `held` is told, and
        may raise what keeps it from being sent."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        headers = () if body is None else (("content-type", JSON),)
        send = partial(self._answered, method, path, limit_s, body=body or b"")
        response = await self._identified(send, headers, send_within_s, held)
        if response.status < 300:
            return response.body
        raise self._refusal(response.status, response.body)

    async def _identified(
        self, send: _Send, headers: Headers, within_s: float, held: Held
    ) -> Response:
        """A request that is refused because of its token is sent again with a new one, if there is
        one: once, since a function that makes a new one each time would have us ask for ever."""
        credentials = self._credentials
        if credentials is None:
            return await send(headers)
        until_s = _now_s() + within_s
        held(True)
        token = await credentials.current()
        said = _in_time(token, until_s, within_s)
        held(False)
        response = await send((*headers, said))
        if response.status != HTTPStatus.UNAUTHORIZED or not credentials.can_renew:
            return response
        held(True)
        former, token = token, await credentials.renewed(token)
        if token == former:
            return response
        said = _in_time(token, until_s, within_s)
        held(False)
        return await send((*headers, said))

    async def _answered(
        self, method: str, path: str, limit_s: float, headers: Headers, *, body: bytes
    ) -> Response:
        try:
            return await self._sent(method, path, limit_s, headers, body)
        except errors.PeerUnreachable as error:
            raise errors.PeerUnreachable(
                f"nothing answers at {self.url}; start it with `headgate up` (if that runs, try "
                f"again in a moment), or {ANOTHER_ADDRESS}",
                url=self.url,
                no_answer="not sent",
            ) from error
        except errors.Timeout as error:
            raise errors.Timeout(
                f"{self.url} gave no answer within {limit_s:g} s", url=self.url, no_answer="unknown"
            ) from error
        except errors.OutcomeUnknown as error:
            raise errors.PeerUnreachable(
                f"{self.url} closed the connection before it answered; try again",
                url=self.url,
                no_answer="unknown",
            ) from error

    async def _sent(
        self, method: str, path: str, limit_s: float, headers: Headers, body: bytes
    ) -> Response:
        until_s = _now_s() + self._patience_s
        while True:
            try:
                return await self._calls.send(
                    method, self.url + path, timeout_s=limit_s, headers=headers, body=body
                )
            except errors.PeerUnreachable:
                if _now_s() + AGAIN_S > until_s:
                    raise
            await asyncio.sleep(AGAIN_S)

    def _parse(self, content: bytes, answer: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(content, type=answer)
        except msgspec.DecodeError as error:
            raise self._foreign(no_answer="unknown") from error

    def _refusal(self, status: int, content: bytes) -> errors.HeadgateError:
        try:
            body = msgspec.json.decode(content, type=ErrorAnswer).error
        except msgspec.DecodeError:
            if status >= 500:
                # Something in between that got no answer, or none in time.
                return errors.NotNow(
                    f"{self.url} answered with status {status}; try again",
                    url=self.url,
                    no_answer="unknown",
                )
            return self._foreign(foreign=True)
        return rebuild(body, status)

    def _foreign(self, **details: object) -> errors.HeadgateError:
        return errors.InvalidRequest(
            f"what answers at {self.url} is not a Headgate of this version; {ANOTHER_ADDRESS}",
            url=self.url,
            **details,
        )


def _in_time(token: str, until_s: float, within_s: float) -> tuple[str, str]:
    """The header that says it. Raises Timeout where it comes too late."""
    if _now_s() > until_s:
        raise took_too_long(within_s)
    return "authorization", f"Bearer {token}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _checked(url: str) -> str:
    try:
        parsed = urlsplit(url)
        _ = parsed.port  # read, which is how it says that it is none
        if parsed.scheme in ("http", "https") and parsed.hostname and not _BLANK.search(url):
            return url.rstrip("/")
    except ValueError:
        pass  # Said below, as for an address of another kind.
    raise errors.InvalidRequest(
        f"{url!r} is not a Headgate address: write it like {DEFAULT_URL}", url=url
    )


def topic_path(name: str) -> str:
    """Where the topic `name` is found; raises InvalidRequest for what can't be a topic's name."""
    if not _NAME.fullmatch(name):
        raise errors.InvalidRequest(
            f"{name!r} can't be a topic: a name has {NAME_RULE}",
            topic=name,
        )
    return f"/v1/topics/{name}"
