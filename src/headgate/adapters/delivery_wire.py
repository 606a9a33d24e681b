"""What a batch and its answer look like on the way, the same for every transport.

JSON on both ways, with the documents as they are. A batch of ordinary records is several lines: its
outline, which is all that an answer needs; the identities of its events; then for each of them the
message that subscribers read, so that a gateway passes on what it never parsed. Every other batch
is one JSON object, the `DeliveryBatch`, and so is whatever a gateway may get from a router that is
older.

What can't be read is one of the errors that ports.transport names. Internal to Headgate: a router
is of the same version as its gateways, or of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from headgate.adapters.delivery_outcome import Refusal, checked, refused, taken
from headgate.errors import HeadgateError, InvalidRequest, NotNow
from headgate.model.delivery import Batch, Delivery, DeliveryAnswer, DeliveryBatch, Outline
from headgate.model.event_message import EventMessage, event_lines, read_part
from headgate.ports.transport import Accept, Meanwhile
from headgate.tasks import Helpers

_T = TypeVar("_T")

MAX_BATCH_BYTES = 256 * 1024 * 1024
NODE_HEADER = "x-streamer-node"
"""Names the sender."""
AUTHORIZATION = "authorization"

PREPARED_MAX = 64
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What reading raises: what is no JSON, or not of its form, is no UTF-8, or nests without end."""

Bytes = bytes | memoryview
Admit = Callable[[str, str], None]
"""Takes the authorization that was given and the sender's address; raises Unauthorized if it is
wrong."""


class _Reply(msgspec.Struct, frozen=True):
    """For transports that have no status of their own: an answer, or a refusal."""

    answer: DeliveryAnswer | None = None
    refusal: Refusal | None = None


_encoder = msgspec.json.Encoder()
encode_batch: Callable[[DeliveryBatch], bytes] = _encoder.encode
encode_answer: Callable[[DeliveryAnswer], bytes] = _encoder.encode
_decode_outline = msgspec.json.Decoder(Outline).decode
_decode_identities = msgspec.json.Decoder(list[str]).decode
_decode_batch = msgspec.json.Decoder(DeliveryBatch).decode
_decode_answer = msgspec.json.Decoder(DeliveryAnswer).decode
_decode_reply = msgspec.json.Decoder(_Reply).decode


# --- the lane's end ------------------------------------------------------------------------------


def encode_lines(batch: DeliveryBatch) -> bytes:
    """As lines, if it can be; otherwise as `encode_batch` does."""
    outline = batch.outline
    if outline is None:
        return encode_batch(batch)
    messages = event_lines(batch.deliveries)
    if messages.count(b"\n") != len(batch.deliveries):  # a document has lines of its own
        return encode_batch(batch)
    return b"\n".join((_encoder.encode(outline), _encoder.encode(batch.identities), messages))


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


async def answer_to(
    request: Coroutine[Any, Any, _T], meanwhile: Meanwhile | None, *, turns: int
) -> _T:
    """What comes back, for a client that sends and waits in one go: after so many turns of the loop
    the request has left, and `meanwhile` is called.

    A task that is cancelled meanwhile ends: pyreqwest swallows the cancellation when the answer
    comes in the same moment, and the task would go on sending batches for ever."""
    task = asyncio.current_task()
    assert task is not None
    told = task.cancelling()
    async with Helpers() as helpers:
        under_way = helpers.start(request)
        for _ in range(turns):
            await asyncio.sleep(0)
        if meanwhile is not None and not under_way.done():
            meanwhile()
        try:
            return await under_way
        finally:
            if task.cancelling() > told:
                raise asyncio.CancelledError


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


def _garbage(url: str, error: msgspec.DecodeError) -> NotNow:
    return NotNow(f"gateway at {url} answered garbage: {error}", url=url)


# --- the gateway's end ---------------------------------------------------------------------------


class LinesBatch:
    """A batch that came as lines, of which the outline was read; the others are when the gateway
    looks at them, and raise InvalidRequest then if they are not what the outline says. When records
    were appended isn't told."""

    def __init__(self, outline: Outline, data: bytes, start: int) -> None:
        self.outline = outline
        self.gateway_id = outline.gateway_id
        self.window = outline.window
        self.attempt = outline.attempt
        self.incarnation = outline.incarnation
        self._data = data
        self._start = start

    @cached_property
    def _lines(self) -> list[bytes]:
        lines = self._data[self._start :].split(b"\n")
        if len(lines) != len(self.outline) + 2:
            raise _invalid("it isn't what its outline says")
        return lines

    @cached_property
    def identities(self) -> list[str]:
        """As the lane wrote them: from a router that is older they are the events' ids alone."""
        try:
            identities = _decode_identities(self._lines[0])
        except UNREADABLE as error:
            raise _invalid(error) from error
        if len(identities) != len(self.outline):
            raise _invalid("it isn't what its outline says")
        return identities

    @cached_property
    def messages(self) -> list[bytes]:
        return [line[:-1] for line in self._lines[1:-1]]

    @cached_property
    def deliveries(self) -> tuple[Delivery, ...]:
        messages = iter(self.messages)
        try:
            return tuple(
                [
                    _delivery(read_part(next(messages)), run.epoch, names)
                    for run in self.outline.runs
                    for _, names in zip(run.seqs, run.subscriptions, strict=True)
                ]
            )
        except UNREADABLE as error:
            raise _invalid(error) from error


def _delivery(message: EventMessage, epoch: int, subscriptions: tuple[str, ...]) -> Delivery:
    return Delivery(
        topic=message.topic,
        partition=message.partition,
        seq=message.seq,
        event_id=message.event_id,
        key=message.key,
        collection=message.collection,
        op=message.op,
        document=message.document,
        subscriptions=subscriptions,
        epoch=epoch,
        headers=message.headers,
    )


def is_lines(data: bytes, start: int = 0) -> bool:
    return data[start : start + 1] == b"["


def read_batch(data: bytes, start: int = 0) -> Batch:
    """The batch that begins at `start`; if it is lines, only the first is read for now."""
    if not is_lines(data, start):
        return _read_whole(memoryview(data)[start:])
    end = data.find(b"\n", start)
    if end < 0:
        raise _invalid("there is nothing behind its outline")
    try:
        outline = _decode_outline(memoryview(data)[start:end])
    except UNREADABLE as error:
        raise _invalid(error) from error
    return LinesBatch(outline, data, end + 1)


def _read_whole(data: Bytes) -> DeliveryBatch:
    try:
        return _decode_batch(data)
    except UNREADABLE as error:
        raise _invalid(error) from error


def _invalid(reason: object) -> InvalidRequest:
    return InvalidRequest(f"the batch is not valid: {reason}")


async def reply_to(data: bytes, accept: Accept) -> bytes:
    """What becomes of one batch, as bytes for the way back."""
    try:
        return _encoder.encode(_Reply(answer=await taken(accept, read_batch(data))))
    except HeadgateError as error:
        return refusal_reply(error)


def refusal_reply(error: HeadgateError) -> bytes:
    return _encoder.encode(_Reply(refusal=Refusal(error.status, error.message)))
