"""Batches over HTTP/2: one POST per batch on a connection that stays open.

The two ends: `HttpDeliveryTransport` sends, `delivery_routes` is what a gateway serves.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.request import ConsumedRequest

from headgate.adapters.delivery_outcome import Refusal, no_answer, refused, taken
from headgate.adapters.delivery_wire import (
    AUTHORIZATION,
    MAX_BATCH_BYTES,
    NODE_HEADER,
    Admit,
    Outgoing,
    answer_to,
    encode_answer,
    encode_lines,
    is_lines,
    read_answer,
    read_batch,
)
from headgate.decide.links.passes import bearer
from headgate.errors import HeadgateError, NotNow
from headgate.model.api import ErrorAnswer
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.model.http import JSON, NDJSON, Request, Response, Route
from headgate.ports.transport import Accept, Meanwhile

PATH = "/internal/v1/streamer/events"
CONNECT_TIMEOUT_S = 2.0
TURNS_TO_LEAVE = 1
"""Of the event loop: the client's own threads have the request then."""

_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


class HttpDeliveryTransport:
    """Implements ports.transport.DeliveryTransport for http:// and https:// addresses.

    `token` is what it shows to gateways, `authority` the certificate (PEM) that vouches for them.
    """

    def __init__(self, node_id: str, *, token: str = "", authority: bytes = b"") -> None:
        headers = {NODE_HEADER: node_id}
        if token:
            headers[AUTHORIZATION] = bearer(token)
        builder = (
            ClientBuilder()
            .http2_prior_knowledge()
            .no_proxy()
            .follow_redirects(False)
            .default_headers(headers)
            .connect_timeout(timedelta(seconds=CONNECT_TIMEOUT_S))
        )
        if authority:
            builder = builder.add_root_certificate_pem(authority)
        self._client = builder.build()
        self._outgoing = Outgoing(encode_lines)

    def prepare(self, url: str, batch: DeliveryBatch) -> None:
        self._outgoing.prepare(url, batch)

    async def deliver(
        self,
        url: str,
        batch: DeliveryBatch,
        *,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        data = self._outgoing.encoded(url, batch)
        request = (
            self._client.post(url + PATH)
            .header("content-type", NDJSON if is_lines(data) else JSON)
            .timeout(timedelta(seconds=timeout_s))
            .body_bytes(data)
            .build()
        )
        try:
            status, body = await answer_to(_exchange(request), meanwhile, turns=TURNS_TO_LEAVE)
        except PyreqwestError as error:
            raise no_answer(url, error) from error
        if status != 200:
            raise _refusal(url, status, body)
        return read_answer(url, body, batch)

    async def close(self) -> None:
        await self._client.close()


async def _exchange(request: ConsumedRequest) -> tuple[int, bytes]:
    response = await request.send()
    return response.status, bytes(await response.bytes())


def _refusal(url: str, status: int, body: bytes) -> HeadgateError:
    """Only a gateway, which says why, refuses a batch for good: a proxy in between may answer 413
    for reasons of its own."""
    try:
        said = _decode_error(body).error.message
    except msgspec.DecodeError:
        return NotNow(f"something at {url} answered {status}, and is no gateway", url=url)
    return refused(url, Refusal(status, said))


def delivery_routes(accept: Accept, admit: Admit) -> list[Route]:
    async def endpoint(request: Request) -> Response:
        headers = request.headers
        admit(headers.get(AUTHORIZATION), headers.get(NODE_HEADER))
        batch = read_batch(await request.body(MAX_BATCH_BYTES))
        return Response(200, encode_answer(await taken(accept, batch)))

    return [
        Route(
            "POST",
            PATH,
            endpoint,
            "Deliver a batch.",
            DeliveryBatch,
            DeliveryAnswer,
            public=False,
            accepts=(JSON, NDJSON),
        )
    ]
