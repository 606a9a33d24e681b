"""Hands a part of a produce request on to the ingest node that owns it.

Invariant: whatever goes wrong leaves here as an error of `headgate.errors`. What never reached the
peer is unreachable, what may have reached it is of unknown outcome, and the peer's own errors are
rebuilt as the class that was raised over there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import msgspec
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import ConnectError, PyreqwestError

from headgate import errors
from headgate.model.api import ErrorAnswer, ErrorBody, ProduceAnswer, ProduceRequest

HOPS_HEADER = "x-headgate-hops"
CONNECT_TIMEOUT_S = 2.0

_encode = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(ProduceAnswer).decode
_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


class HttpProducePeers:
    """One shared client for all peers."""

    def __init__(self) -> None:
        self._client = (
            ClientBuilder()
            .connect_timeout(timedelta(seconds=CONNECT_TIMEOUT_S))
            .follow_redirects(False)
            .no_proxy()
            .build()
        )

    async def produce(
        self, url: str, topic: str, request: ProduceRequest, *, hops: int, timeout_s: float
    ) -> ProduceAnswer:
        """The answer of the node at `url`, which is told how often this was handed on."""
        message = (
            self._client.post(f"{url}/v1/topics/{topic}/produce")
            .header("content-type", "application/json")
            .header(HOPS_HEADER, str(hops))
            .timeout(timedelta(seconds=timeout_s))
            .body_bytes(_encode(request))
            .build()
        )
        try:
            response = await message.send()
            body = bytes(await response.bytes())
        except ConnectError as error:
            raise errors.PeerUnreachable(
                f"nothing answers at {url} at the moment; nothing was written there, try again",
                url=url,
            ) from error
        except PyreqwestError as error:
            raise _no_answer(url) from error
        try:
            if response.status == 200:
                return _checked(url, _decode_answer(body), len(request.events))
            raise rebuilt(_decode_error(body).error)
        except msgspec.DecodeError as error:
            raise _no_answer(url) from error

    async def close(self) -> None:
        await self._client.close()


def _checked(url: str, answer: ProduceAnswer, events: int) -> ProduceAnswer:
    if len(answer.events) != events:
        raise _no_answer(url)
    return answer


def _no_answer(url: str) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        f"{url} gave no answer, so this may or may not have been written: {errors.SAME_IDS_AGAIN}",
        url=url,
    )


def rebuilt(body: ErrorBody) -> errors.HeadgateError:
    """The error that `body` describes, as the class that the peer raised."""
    error = _KINDS.get(body.code, errors.HeadgateError)(body.message)
    error.details.update(body.details)
    return error


def _tree(kind: type[errors.HeadgateError]) -> Iterator[type[errors.HeadgateError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


_KINDS = {kind.code: kind for kind in _tree(errors.HeadgateError)}
