"""Batches over HTTP/2: one POST per batch on a connection that stays open."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from headgate.errors import InvalidRequest, NotNow, PeerUnreachable
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch

PATH = "/internal/v1/streamer/events"
CONNECT_TIMEOUT_S = 2.0

_encode = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(DeliveryAnswer).decode


class HttpDeliveryTransport:
    """Implements ports.transport.DeliveryTransport."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._client = (
            ClientBuilder()
            .http2_prior_knowledge()
            .connect_timeout(timedelta(seconds=CONNECT_TIMEOUT_S))
            .build()
        )

    async def deliver(self, url: str, batch: DeliveryBatch, *, timeout_s: float) -> DeliveryAnswer:
        request = (
            self._client.post(url + PATH)
            .header("content-type", "application/json")
            .header("x-streamer-node", self._node_id)
            .timeout(timedelta(seconds=timeout_s))
            .body_bytes(_encode(batch))
            .build()
        )
        try:
            response = await request.send()
            body = await response.bytes()
        except PyreqwestError as error:
            raise PeerUnreachable(f"gateway at {url} doesn't answer: {error}") from error
        if response.status >= 500:
            raise NotNow(f"gateway at {url} answered {response.status}")
        if response.status != 200:
            raise InvalidRequest(f"gateway at {url} refused a batch with {response.status}")
        try:
            answer = _decode_answer(bytes(body))
        except msgspec.DecodeError as error:
            raise NotNow(f"gateway at {url} answered garbage: {error}") from error
        if len(answer.verdicts) != len(batch.deliveries):
            raise NotNow(f"gateway at {url} answered for another number of events")
        return answer

    async def close(self) -> None:
        await self._client.close()
