"""Hands a part of a produce request on to the ingest node that owns it.

Invariant: whatever goes wrong leaves here as an error of `headgate.errors`. What never reached the
peer is unreachable, what may have reached it is of unknown outcome, and the peer's own errors are
rebuilt as the class that was raised over there.
"""

from __future__ import annotations

import msgspec

from headgate import errors
from headgate.model.api import ErrorAnswer, ProduceAnswer, ProduceRequest
from headgate.model.http import JSON
from headgate.model.refusals import rebuild
from headgate.ports.http import HttpCalls

HOPS_HEADER = "x-headgate-hops"

_encode = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(ProduceAnswer).decode
_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


class ProducePeers:
    """`headers` have what a node shows to another."""

    def __init__(self, calls: HttpCalls, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self._calls = calls
        self._headers = headers

    async def produce(
        self, url: str, topic: str, request: ProduceRequest, *, hops: int, timeout_s: float
    ) -> ProduceAnswer:
        """The answer of the node at `url`, which is told how often this was handed on."""
        try:
            response = await self._calls.send(
                "POST",
                f"{url}/v1/topics/{topic}/produce",
                timeout_s=timeout_s,
                headers=(("content-type", JSON), (HOPS_HEADER, str(hops)), *self._headers),
                body=_encode(request),
            )
        except errors.PeerUnreachable as error:
            raise errors.PeerUnreachable(
                f"nothing answers at {url} at the moment; nothing was written there, try again",
                url=url,
            ) from error
        except (errors.Timeout, errors.OutcomeUnknown) as error:
            raise _no_answer(url) from error
        try:
            if response.status == 200:
                return _checked(url, _decode_answer(response.body), len(request.events))
            raise rebuild(_decode_error(response.body).error, response.status)
        except msgspec.DecodeError as error:
            raise _no_answer(url) from error


def _checked(url: str, answer: ProduceAnswer, events: int) -> ProduceAnswer:
    if len(answer.events) != events:
        raise _no_answer(url)
    return answer


def _no_answer(url: str) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        f"{url} gave no answer, so this may or may not have been written: {errors.SAME_IDS_AGAIN}",
        url=url,
    )
