"""HTTP calls over the network, with pyreqwest.

They go straight to the address, whatever proxies the environment names: a node's address is one of
the machine or of its network, which a proxy can't reach.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterable
from datetime import timedelta

from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import ConnectError, PyreqwestError, RequestTimeoutError
from pyreqwest.request import RequestBuilder
from pyreqwest.response import BaseResponse

from headgate import errors
from headgate.model.http import Response

CONNECT_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 1_024
EXIT_PAUSE_S = 0.02
CONNECTING = "client error (Connect)"
"""Among the causes of an error that came before a request could leave."""


class PooledCalls:
    """Implements ports.http.HttpCalls, with one pool of connections. Of an answer with more than
    `max_answer_bytes` (0: any number) nothing further is read: it is no answer."""

    def __init__(
        self, *, connect_timeout_s: float = CONNECT_TIMEOUT_S, max_answer_bytes: int = 0
    ) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._client = (
            ClientBuilder()
            .connect_timeout(timedelta(seconds=connect_timeout_s))
            .max_connections(MAX_CONNECTIONS)
            .pool_timeout(timedelta(seconds=connect_timeout_s))
            .follow_redirects(False)
            .no_proxy()
            # What is passed on stays as it is.
            .gzip(False)
            .brotli(False)
            .zstd(False)
            .deflate(False)
            .build()
        )

    async def send(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Response:
        try:
            message = self._client.request(method, url).headers(list(headers))
            message = message.timeout(timedelta(seconds=timeout_s))
            message = message.body_bytes(body) if body else message
            if self._max_answer_bytes:
                return await self._bounded(message, url)
            answer = await message.build().send()
            content = bytes(await answer.bytes())
        except RequestTimeoutError as error:
            # Also where it says "connect": that may be a request that was sent and not answered.
            raise errors.Timeout(f"{url} gave no answer within {timeout_s:g} s", url=url) from error
        except PyreqwestError as error:
            if _was_connecting(error):
                raise errors.PeerUnreachable(f"nothing answers at {url}", url=url) from error
            raise errors.OutcomeUnknown(f"the connection to {url} ended", url=url) from error
        return _response(answer, content)

    async def _bounded(self, message: RequestBuilder, url: str) -> Response:
        content = bytearray()
        async with message.build_streamed() as answer:
            while (chunk := await answer.body_reader.read_chunk()) is not None:
                content += chunk
                if len(content) > self._max_answer_bytes:
                    raise errors.TooLarge(
                        f"what {url} answers is larger than {self._max_answer_bytes} bytes", url=url
                    )
            return _response(answer, bytes(content))

    async def close(self) -> None:
        await self._client.close()


def _response(answer: BaseResponse, content: bytes) -> Response:
    found = dict(answer.headers.items())
    return Response(answer.status, content, found.get("content-type", ""), found)


def _was_connecting(error: PyreqwestError) -> bool:
    """A ConnectError is also what the library makes of a connection that ends after the request has
    left; only its causes tell the two apart."""
    if not isinstance(error, ConnectError):
        return False
    return any(cause["message"] == CONNECTING for cause in error.details["causes"] or ())


def _let_threads_rest() -> None:
    """Before Python goes down, let the library's threads come back from what they are doing.

    One that asks for the interpreter while it's taken down aborts the process (seen with one exit
    in five, on Python 3.11). It takes them microseconds, once this thread lets go of the lock.
    """
    threading.Event().wait(EXIT_PAUSE_S)


atexit.register(_let_threads_rest)
