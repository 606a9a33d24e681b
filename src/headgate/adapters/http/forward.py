"""Passes a request on to another role and its answer back, over kept-alive connections.

Invariant: method, path, query, body and end-to-end headers arrive unchanged; hop-by-hop headers
don't, nor what a browser says of its page, which was judged here. A write whose answer never came
is reported as of unknown outcome, never as "not done".
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import ConnectError, PyreqwestError
from pyreqwest.response import Response as PeerResponse

from headgate import errors
from headgate.model.http import Request, Response
from headgate.tasks import first_of

HOP_BY_HOP = frozenset(
    {
        "connection",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
OF_A_BROWSER = frozenset({"origin", "sec-fetch-mode", "sec-fetch-site"})
OF_THIS_SERVER = frozenset({"content-length", "content-type", "date", "server"})
UNSENT = HOP_BY_HOP | OF_A_BROWSER | {"content-length"}
CONNECT_TIMEOUT_S = 2.0


class Forwarder:
    """One shared client for all peers."""

    def __init__(self, *, body_limit_bytes: int, max_in_flight: int = 1_024) -> None:
        self._body_limit_bytes = body_limit_bytes
        self._client: Client = (
            ClientBuilder()
            .connect_timeout(timedelta(seconds=CONNECT_TIMEOUT_S))
            .max_connections(max_in_flight)
            .pool_timeout(timedelta(seconds=CONNECT_TIMEOUT_S))
            .follow_redirects(False)
            .no_proxy()
            .gzip(False)
            .brotli(False)
            .zstd(False)
            .deflate(False)
            .build()
        )

    async def forward(self, request: Request, base_url: str, *, timeout_s: float) -> Response:
        body = await self.body_of(request)
        return await self.pass_on(request, body, base_url, timeout_s=timeout_s)

    async def body_of(self, request: Request) -> bytes:
        return await request.body(self._body_limit_bytes)

    async def pass_on(
        self, request: Request, body: bytes, base_url: str, *, timeout_s: float
    ) -> Response:
        """The peer's answer; not waited for any longer when `request`'s client goes away. Raises
        PeerUnreachable with the `url` of a peer that got nothing."""
        query = f"?{request.query_string}" if request.query_string else ""
        url = f"{base_url.rstrip('/')}{request.raw_path}{query}"
        message = (
            self._client.request(request.method, url)
            .headers(_end_to_end(request.headers.items(), UNSENT))
            .timeout(timedelta(seconds=timeout_s))
        )
        if body:
            message = message.body_bytes(body)
        try:
            answer = await first_of(message.build().send(), request.disconnected())
            if answer is None:
                raise errors.PeerUnreachable("the client went away before it was answered")
            return await _translate(answer)
        except ConnectError as error:
            raise errors.PeerUnreachable(
                f"nothing answers at {base_url} at the moment; try again", url=base_url
            ) from error
        except PyreqwestError as error:
            # ConnectTimeoutError is among these: pyreqwest raises it also for a request that was
            # sent and not answered in time.
            if request.method in ("GET", "HEAD"):
                raise errors.PeerUnreachable(
                    f"{base_url} did not answer; try again", url=base_url
                ) from error
            raise errors.OutcomeUnknown(
                f"{base_url} did not answer, so this may or may not have been done; "
                "repeat it with the same event ids",
                url=base_url,
            ) from error

    async def close(self) -> None:
        await self._client.close()


async def _translate(answer: PeerResponse) -> Response:
    headers = dict(_end_to_end(answer.headers.items(), HOP_BY_HOP | OF_THIS_SERVER))
    return Response(
        answer.status,
        bytes(await answer.bytes()),
        answer.get_header("content-type") or "",
        headers,
    )


def _end_to_end(
    headers: Iterable[tuple[str, str]], dropped: frozenset[str] | set[str]
) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in dropped]
