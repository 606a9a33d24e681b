"""JSON over HTTP to a Headgate address, for the clients and the commands.

Invariant: whatever goes wrong leaves here as an error of `headgate.errors`: the server's own errors
are rebuilt as the class that was raised over there, a silent or foreign address becomes a sentence
that says what to do. The detail `no_answer` is there when the other side said nothing that could
be understood: "not sent", or "unknown" where it may have done what it was asked. Never retries: who
calls knows whether that is safe.
"""

from __future__ import annotations

import atexit
import re
import threading
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import (
    ConnectError,
    PyreqwestError,
    RequestTimeoutError,
)
from pyreqwest.http import Url

from headgate import errors
from headgate.errors import ANOTHER_ADDRESS
from headgate.model.api import DEFAULT_URL, NAME_PATTERN, NAME_RULE, ErrorAnswer
from headgate.model.refusals import rebuild

EXIT_PAUSE_S = 0.02


Answer = TypeVar("Answer")

_NAME = re.compile(NAME_PATTERN)


class HttpClient:
    """One address and its pool of connections.

    Goes straight to the address, whatever proxies the environment names: a node's address is one of
    the machine or of its network, which a proxy can't reach.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 10.0, connect_timeout_s: float = 3.0
    ) -> None:
        self.url = _checked(url)
        self._timeout_s = timeout_s
        self._client: Client = (
            ClientBuilder()
            .no_proxy()
            .follow_redirects(False)
            .connect_timeout(timedelta(seconds=connect_timeout_s))
            .build()
        )

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
        await self._client.close()

    async def get(self, path: str, answer: type[Answer]) -> Answer:
        return self._parse(await self.call("GET", path), answer)

    async def post(
        self, path: str, body: object, answer: type[Answer], *, timeout_s: float | None = None
    ) -> Answer:
        encoded = msgspec.json.encode(body)
        return self._parse(await self.call("POST", path, encoded, timeout_s=timeout_s), answer)

    async def delete(self, path: str) -> None:
        await self.call("DELETE", path)

    async def call(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float | None = None
    ) -> bytes:
        """The body of a good answer; raises the error that a bad one stands for."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            builder = self._client.request(method, self.url + path)
            builder = builder.timeout(timedelta(seconds=limit_s))
            if body is not None:
                builder = builder.header("content-type", "application/json").body_bytes(body)
            response = await builder.build().send()
            content = bytes(await response.bytes())
        except PyreqwestError as error:
            raise self._translate(error, limit_s) from error
        if response.status < 300:
            return content
        raise self._refusal(response.status, content)

    def _translate(self, error: PyreqwestError, limit_s: float) -> errors.HeadgateError:
        if isinstance(error, ConnectError):
            return errors.PeerUnreachable(
                f"nothing answers at {self.url}; start it with `headgate up`, or {ANOTHER_ADDRESS}",
                url=self.url,
                no_answer="not sent",
            )
        if isinstance(error, RequestTimeoutError):
            # Also where it says "connect": that may be a request that was sent and not answered.
            return errors.Timeout(
                f"{self.url} gave no answer within {limit_s:g} s", url=self.url, no_answer="unknown"
            )
        return errors.PeerUnreachable(
            f"{self.url} closed the connection before it answered; try again",
            url=self.url,
            no_answer="unknown",
        )

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


def _let_threads_rest() -> None:
    """Before Python goes down, let the library's threads come back from what they are doing.

    One that asks for the interpreter while it's taken down aborts the process (seen with one exit
    in five, on Python 3.11). It takes them microseconds, once this thread lets go of the lock.
    """
    threading.Event().wait(EXIT_PAUSE_S)


atexit.register(_let_threads_rest)


def _checked(url: str) -> str:
    try:
        parsed = Url(url)
        if parsed.scheme in ("http", "https") and parsed.host_str:
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
