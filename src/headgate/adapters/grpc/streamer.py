"""The messages of streamer.proto, and what they are here.

The classes are made from the compiled descriptors next to the .proto file, so that there is no
generated code that wants a particular version of the library.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, get_args

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from headgate.adapters.delivery_outcome import Refusal, checked, refused, taken
from headgate.adapters.delivery_wire import UNREADABLE, encode_answer, read_answer, read_batch
from headgate.errors import HeadgateError, InvalidRequest, NotNow
from headgate.model.delivery import (
    SETTLING_VERDICTS,
    Delivery,
    DeliveryAnswer,
    DeliveryBatch,
    Verdict,
)
from headgate.model.event import Op
from headgate.ports.transport import Accept

SERVICE = "headgate.v1.Streamer"
DELIVER = "DeliverEvents"


def _messages() -> dict[str, Any]:
    described = descriptor_pb2.FileDescriptorSet.FromString(
        files(__package__).joinpath("streamer.binpb").read_bytes()
    )
    found: dict[str, Any] = message_factory.GetMessages(
        described.file, descriptor_pool.DescriptorPool()
    )
    return found


_classes = _messages()
EventBatch = _classes["headgate.v1.EventBatch"]
StreamerEvent = _classes["headgate.v1.StreamerEvent"]
DeliveryAck = _classes["headgate.v1.DeliveryAck"]

_NUMBERS: dict[str, int] = {
    verdict: EventBatch.DESCRIPTOR.file.enum_types_by_name["Result"]
    .values_by_name[verdict.upper()]
    .number
    for verdict in get_args(Verdict)
}
_VERDICTS: dict[int, Verdict] = {_NUMBERS[verdict]: verdict for verdict in get_args(Verdict)}
_OPS: dict[str, Op] = {op: op for op in get_args(Op)}


# --- messages that are nothing but JSON ----------------------------------------------------------

# Nearly all are, and then they are the field's tag, the length and the bytes. By the library these
# are copied twice on each way, which takes longer than to write or read what the answer says.
_JSON_TAG = b"\x7a"
"""Field 15, length-delimited: `json` of both messages."""
_VARINT_BYTES_MAX = 5


def encode(message_json: bytes) -> bytes:
    """An EventBatch or a DeliveryAck with this `json`, which isn't empty, and nothing else."""
    size, length = len(message_json), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return b"".join((_JSON_TAG, length, message_json))


def only_json(data: bytes) -> int | None:
    """Where the `json` of a message begins that has nothing else; None for all others."""
    if data[:1] != _JSON_TAG:
        return None
    size = 0
    for at, byte in enumerate(data[1 : 1 + _VARINT_BYTES_MAX]):
        size |= (byte & 0x7F) << 7 * at
        if byte <= 0x7F:
            start = at + 2
            return start if size and len(data) == start + size else None
    return None


# --- the lane's end ------------------------------------------------------------------------------


def read_ack(url: str, data: bytes, batch: DeliveryBatch) -> DeliveryAnswer:
    if (start := only_json(data)) is not None:
        return read_answer(url, memoryview(data)[start:], batch)
    try:
        ack = DeliveryAck.FromString(data)
        if ack.HasField("refusal"):
            raise refused(url, Refusal(ack.refusal.status, ack.refusal.message))
        if ack.json:
            return read_answer(url, ack.json, batch)
        verdicts = tuple([_VERDICTS[number] for number in ack.results])
    except (DecodeError, KeyError) as error:
        raise NotNow(f"gateway at {url} answered garbage: {error!r}", url=url) from error
    return checked(url, DeliveryAnswer(verdicts, ack.fill), batch)


# --- the gateway's end ---------------------------------------------------------------------------


async def ack_of(data: bytes, accept: Accept) -> bytes:
    """What becomes of one batch, as bytes for the way back."""
    try:
        if (start := only_json(data)) is not None:
            return encode(encode_answer(await taken(accept, read_batch(data, start))))
        batch = _event_batch(data)
        if batch.json:
            return encode(encode_answer(await taken(accept, read_batch(batch.json))))
        ack = _ack(await taken(accept, _fields_of(batch)))
    except HeadgateError as error:
        ack = DeliveryAck(refusal={"status": error.status, "message": error.message})
    encoded: bytes = ack.SerializeToString()
    return encoded


def _ack(answer: DeliveryAnswer) -> Any:
    settled = sum(verdict in SETTLING_VERDICTS for verdict in answer.verdicts)
    return DeliveryAck(
        accepted=settled,
        rejected=len(answer.verdicts) - settled,
        results=[_NUMBERS[verdict] for verdict in answer.verdicts],
        fill=answer.fill,
    )


def _event_batch(data: bytes) -> Any:
    try:
        return EventBatch.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"the batch is not valid: {error}") from error


def _fields_of(batch: Any) -> DeliveryBatch:
    deliveries = tuple([_delivery(event) for event in batch.events])
    sender = batch.gateway_id, batch.window, batch.attempt
    return DeliveryBatch(*sender, deliveries, batch.incarnation)


def _delivery(event: Any) -> Delivery:
    op = _OPS.get(event.event_type)
    if op is None:
        raise InvalidRequest(f"event {event.event_id} has no event_type that is known")
    try:
        document = msgspec.json.decode(event.payload or b"null", type=msgspec.Raw)
    except UNREADABLE as error:
        raise InvalidRequest(f"the payload of event {event.event_id} is not JSON") from error
    return Delivery(
        topic=event.topic,
        partition=event.partition_id,
        seq=event.seq,
        event_id=event.event_id,
        key=event.document_id if event.HasField("document_id") else None,
        collection=event.collection,
        op=op,
        document=document,
        subscriptions=tuple(event.subscription_ids),
        epoch=event.epoch,
        time_ms=event.time_ms,
        since=tuple(event.since),
        left=tuple(event.left),
        redelivery=event.redelivery,
        lost_from=event.lost_from,
        broadcast=event.broadcast,
        wish=event.wish,
        headers=_headers(event),
    )


def _headers(event: Any) -> msgspec.Raw | msgspec.UnsetType:
    if not event.headers:
        return msgspec.UNSET
    try:
        msgspec.json.decode(event.headers, type=dict[str, str])
    except UNREADABLE as error:
        raise InvalidRequest(f"the headers of event {event.event_id} are no texts") from error
    return msgspec.Raw(event.headers)
