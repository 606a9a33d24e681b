"""How letter stores write a delivery down, so that nothing of the event is lost.

The delivery is stored whole, as JSON; what a store filters or changes has a column besides, and of
those only `redelivery` (an operator wants it sent again) changes what comes back. The last field of
the JSON is a checksum of the others and of the gateway that the letter is for (XXH3, 64 bits): what
the disk has changed of either is sent to nobody. It stands in there, and not in a column, so that
readers of letters know it from any store, and a Headgate from before passes over it. State, time
and attempts have none: they change, and whatever they say loses no event.

Invariant: a letter whose checksum differs, or that says it is of another record than its row, is
shown as damaged; one without (from before there were any) is read as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

from headgate.decide.delivery.parts import joined
from headgate.errors import StorageFailed
from headgate.model.delivery import Delivery
from headgate.model.event import UNDECODABLE
from headgate.model.letters import Letter, LetterCount, LetterReason, LetterState, NewLetter

REPLACED = (
    "for whom this record was parked can't be read any more, because the letter was damaged: sent "
    "again, it goes to everybody who is subscribed"
)

KINDS = (int, str, str, str, int, str, int, int, bytes, str, int, int)
"""What the fields of a row are."""
REASONS = get_args(LetterReason)
TEXTS = (1, 2, 3, 5, 9)
"""Where gateway, state, reason, error and topic stand in a row."""

STATES = get_args(LetterState)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Delivery).decode
_CHECKSUM = b',"checksum":"%s"}'
_MARK = len(b',"checksum":"')
_CHECKSUM_BYTES = _MARK + 16 + len(b'"}')

Place = tuple[str, int, int]
"""Topic, partition and seq of a record."""


def encoded(delivery: Delivery, gateway_id: str) -> bytes:
    """What is written down of it in a letter for that gateway."""
    content = _encode(delivery)
    return content[:-1] + _CHECKSUM % _checksum(content, gateway_id)


def _checksum(content: bytes, gateway_id: str) -> bytes:
    return xxh3_64_hexdigest(content + gateway_id.encode()).encode()


def is_sound(content: bytes, gateway_id: str) -> bool | None:
    """Is it what was written for that gateway? None where it has no checksum."""
    end = content[-_CHECKSUM_BYTES:]
    if not end.startswith(_CHECKSUM[:_MARK]) or end.endswith(b'"}}'):  # the event has such a header
        return None
    before = content[:-_CHECKSUM_BYTES] + b"}"
    return end == _CHECKSUM % _checksum(before, gateway_id)


def letter_of(row: Sequence[Any], gateway_id: str) -> Letter:
    """From id, gateway, state, reason, attempts, error, time, `redelivery`, what is written down of
    the delivery, topic, partition and seq, found for `gateway_id`. Raises StorageFailed for what a
    store has damaged: a letter that says another place than its row has, or that is for another
    gateway, would be taken for another's."""
    id_, told, state, reason, attempts, error, at_ms, redelivery, content, *place = row
    delivery = decoded(content, redelivery=bool(redelivery))
    if [delivery.topic, delivery.partition, delivery.seq] != place:
        raise _damaged("it is said to be of another record")
    sound = is_sound(content, gateway_id)
    if sound is False or (sound is None and told != gateway_id):
        raise _damaged("it isn't what was written for this gateway")
    return Letter(
        id=id_,
        gateway_id=gateway_id,
        state=state,
        reason=reason,
        delivery=delivery,
        attempts=attempts,
        error=error,
        at_ms=at_ms,
    )


def shown(row: Sequence[Any]) -> Letter:
    """Whatever is known of it: of one that is damaged what its columns say, and how it is. Texts
    may come as bytes, which may be damaged, too."""
    return _shown(row, None)


def parked_letter(row: Sequence[Any], gateway_id: str) -> Letter:
    """The same for one that a store has found where it looked for what is parked for `gateway_id`
    at this topic, partition and seq."""
    return _shown(row, gateway_id)


def _shown(row: Sequence[Any], gateway_id: str | None) -> Letter:
    if gateway_id is not None and isinstance(row[1], bytes):  # it need not be told that
        row = [row[0], row[1].decode(errors="replace"), *row[2:]]
    try:
        texts = _texts(row, "strict")
        if not all(map(isinstance, texts, KINDS)):
            raise _damaged("a field of it is of another kind")
        if (reason := texts[3]) not in REASONS:
            raise _damaged(f"nobody knows the reason {reason}")
        states = STATES if gateway_id is None else ("parked",)
        if texts[2] not in states or (gateway_id is not None and texts[7]):
            raise _damaged("its state isn't what it was")
        return letter_of(texts, texts[1] if gateway_id is None else gateway_id)
    except UnicodeDecodeError as error:
        return _remains(row, str(error), gateway_id)
    except StorageFailed as error:
        return _remains(row, str(error.details["why"]), gateway_id)


def _texts(row: Sequence[Any], errors: str) -> list[Any]:
    return [
        one.decode(errors=errors) if at in TEXTS and isinstance(one, bytes) else one
        for at, one in enumerate(row)
    ]


def _remains(row: Sequence[Any], why: str, gateway_id: str | None) -> Letter:
    texts: list[Any] = [
        field if isinstance(field, kind) else kind()
        for field, kind in zip(_texts(row, "replace"), KINDS, strict=True)
    ]
    id_, told, state, reason, attempts, error, at_ms, redelivery, _, *place = texts
    topic, partition, seq = place
    nothing = msgspec.Raw(b"null")
    delivery = Delivery(topic, partition, seq, "", None, "", "update", nothing, (), 0)
    return Letter(
        id=id_,
        gateway_id=told if gateway_id is None else gateway_id,
        state=state if gateway_id is None and state in STATES else "parked",
        reason=reason if reason in REASONS else "failed",
        delivery=replace(delivery, redelivery=bool(redelivery)),
        attempts=attempts,
        error=error,
        at_ms=at_ms,
        damage=why,
    )


def undamaged(content: bytes, place: Place, gateway_id: str) -> Delivery | None:
    """What is written down of the delivery of the record at that place, for that gateway, or None
    where a store has damaged it."""
    delivery = of_any_place(content)
    if delivery is None or (delivery.topic, delivery.partition, delivery.seq) != place:
        return None
    return None if is_sound(content, gateway_id) is False else delivery


def of_any_place(content: bytes) -> Delivery | None:
    """The same, for any place and any gateway."""
    try:
        return decoded(content, redelivery=False)
    except StorageFailed:
        return None


def either(stored: Delivery | None, new: Delivery | None) -> Delivery | None:
    """For whom either of them is; None is a damaged one."""
    if stored is None or new is None:
        return stored or new
    return joined(stored, new)


def in_place_of_damaged(new: NewLetter) -> NewLetter | None:
    """What is kept besides of a damaged letter that `new` takes the place of. A dead one is for the
    subscribers there are when it is sent again, so `new` says all of it; for whom a parked one was
    isn't known any more: it stays as a dead letter."""
    if new.state == "dead":
        return None
    return replace(new, state="dead", error=REPLACED)


def decoded(content: bytes | None, *, redelivery: bool) -> Delivery:
    """A delivery may also be one in itself: a partition that was reset brings its records again, in
    their order. Raises StorageFailed for what a store has damaged."""
    if not isinstance(content, bytes):
        raise _damaged("it can't be read")
    try:
        delivery = _decode(content)
    except UNDECODABLE as error:
        raise _damaged(error) from error
    if delivery.redelivery or not redelivery:
        return delivery
    return replace(delivery, redelivery=True)


def _damaged(why: object) -> StorageFailed:
    return StorageFailed(
        f"a letter is damaged ({why}); restore the store of letters from a copy", why=str(why)
    )


def content_of(delivery: Delivery | None, gateway_id: str) -> bytes:
    """What is written down of the delivery: nothing of a damaged one, so that it can't be taken for
    whole."""
    return b"" if delivery is None else encoded(delivery, gateway_id)


def printable(error: str) -> str:
    """What a peer said, as every store can keep it: valid UTF-8 without zeros."""
    return error.encode("utf-8", "replace").decode().replace("\0", "?")


def counted(row: Sequence[Any]) -> LetterCount:
    """From state, gateway, topic and reason as bytes, and how many there are since when."""
    *kind, count, oldest_ms = row
    told: list[Any] = [*map(as_text, kind), count, oldest_ms]
    return LetterCount(*told)


def as_text(stored: object) -> str:
    """Whatever the disk has made of it."""
    return stored.decode(errors="replace") if isinstance(stored, bytes) else ""
