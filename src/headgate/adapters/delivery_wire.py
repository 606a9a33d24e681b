"""What a batch and its answer look like on the way, whichever transport carries them.

JSON on both ways, with the documents as they are. Invariant: whatever a gateway answers becomes a
`DeliveryAnswer` with one verdict per delivery, or one of the errors that ports.transport names.
Internal to Headgate: both ends are of the same version, or of two neighbouring ones.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

import msgspec

from headgate.errors import HeadgateError, InvalidRequest, NotNow, PeerUnreachable, TooLarge
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch

MAX_BATCH_BYTES = 256 * 1024 * 1024
NODE_HEADER = "x-streamer-node"
"""Names the sender."""
AUTHORIZATION = "authorization"

PREPARED_MAX = 64

Bytes = bytes | memoryview
Accept = Callable[[DeliveryBatch], DeliveryAnswer]
"""The gateway's decision about a batch; raises a HeadgateError to refuse it as a whole."""
Admit = Callable[[str, str], None]
"""Takes the authorization that was given and who gave it; raises Unauthorized if it is wrong."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a gateway didn't take a batch; `status` as in HTTP."""

    status: int
    message: str


class _Reply(msgspec.Struct, frozen=True):
    """For transports that have no status of their own: an answer, or a refusal."""

    answer: DeliveryAnswer | None = None
    refusal: Refusal | None = None


_encoder = msgspec.json.Encoder()
encode_batch: Callable[[DeliveryBatch], bytes] = _encoder.encode
encode_answer: Callable[[DeliveryAnswer], bytes] = _encoder.encode
_decode_batch = msgspec.json.Decoder(DeliveryBatch).decode
_decode_answer = msgspec.json.Decoder(DeliveryAnswer).decode
_decode_reply = msgspec.json.Decoder(_Reply).decode


# --- the lane's end ------------------------------------------------------------------------------


def authorization_of(token: str) -> str:
    return f"Bearer {token}"


class Outgoing:
    """Batches on their way out: one per address is encoded before it is its turn."""

    def __init__(self, encode: Callable[[DeliveryBatch], bytes]) -> None:
        self._encode = encode
        self._prepared: dict[str, tuple[DeliveryBatch, bytes]] = {}

    def prepare(self, url: str, batch: DeliveryBatch) -> None:
        if len(self._prepared) >= PREPARED_MAX:
            self._prepared.clear()
        self._prepared[url] = (batch, self._encode(batch))

    def encoded(self, url: str, batch: DeliveryBatch) -> bytes:
        prepared = self._prepared.pop(url, None)
        if prepared is not None and prepared[0] is batch:
            return prepared[1]
        return self._encode(batch)


def read_answer(url: str, data: Bytes, batch: DeliveryBatch) -> DeliveryAnswer:
    try:
        return checked(url, _decode_answer(data), batch)
    except msgspec.DecodeError as error:
        raise _garbage(url, error) from error


def read_reply(url: str, data: bytes, batch: DeliveryBatch) -> DeliveryAnswer:
    """Like `read_answer`, for what `reply_to` made."""
    try:
        reply = _decode_reply(data)
    except msgspec.DecodeError as error:
        raise _garbage(url, error) from error
    if reply.refusal is not None:
        raise refused(url, reply.refusal)
    if reply.answer is None:
        raise NotNow(f"gateway at {url} answered nothing that can be understood", url=url)
    return checked(url, reply.answer, batch)


def checked(url: str, answer: DeliveryAnswer, batch: DeliveryBatch) -> DeliveryAnswer:
    if len(answer.verdicts) != len(batch.deliveries):
        raise NotNow(
            f"gateway at {url} answered for {len(answer.verdicts)} events instead of "
            f"{len(batch.deliveries)}",
            url=url,
        )
    return answer


def refused(url: str, refusal: Refusal) -> HeadgateError:
    """Only what says that the batch itself is wrong is for good."""
    said = f": {refusal.message}" if refusal.message else ""
    match refusal.status:
        case 400 | 422:
            return InvalidRequest(f"gateway at {url} refused a batch{said}", url=url)
        case 413:
            return TooLarge(f"gateway at {url} refused a batch as too large{said}", url=url)
        case 401 | 403:
            return NotNow(
                f"gateway at {url} doesn't accept this router's transport.token; set the same on "
                "both",
                url=url,
            )
    return NotNow(f"gateway at {url} answered {refusal.status}{said}", url=url)


def no_answer(url: str, reason: object) -> PeerUnreachable:
    return PeerUnreachable(f"gateway at {url} doesn't answer: {reason}", url=url)


def _garbage(url: str, error: msgspec.DecodeError) -> NotNow:
    return NotNow(f"gateway at {url} answered garbage: {error}", url=url)


# --- the gateway's end ---------------------------------------------------------------------------


def read_batch(data: Bytes) -> DeliveryBatch:
    try:
        return _decode_batch(data)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the batch is not valid: {error}") from error


def reply_to(data: bytes, accept: Accept) -> bytes:
    """What becomes of one batch, as bytes for the way back."""
    try:
        return _encoder.encode(_Reply(answer=accept(read_batch(data))))
    except HeadgateError as error:
        return _encoder.encode(_Reply(refusal=Refusal(error.status, error.message)))


def same_token(given: str, expected: str) -> bool:
    """Whether an authorization carries the token, in a time that doesn't tell how much of it."""
    return hmac.compare_digest(given.encode(), authorization_of(expected).encode())
