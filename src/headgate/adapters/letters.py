"""How letter stores write a delivery down, so that nothing of the event is lost.

The delivery is stored whole, as JSON; what a store filters or changes has a column besides, and of
those only `redelivery` (an operator wants it sent again) changes what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from headgate.decide.delivery.parts import joined
from headgate.errors import StorageFailed
from headgate.model.delivery import Delivery
from headgate.model.event import UNDECODABLE
from headgate.model.letters import Letter, LetterReason, NewLetter

REPLACED = (
    "for whom this record was parked can't be read any more, because the letter was damaged: sent "
    "again, it goes to everybody who is subscribed"
)

REASONS = get_args(LetterReason)
TEXTS = (1, 3, 5, 9)
"""Where gateway, reason, error and topic stand in a row."""

encoded = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Delivery).decode


def letter_of(row: Sequence[Any]) -> Letter:
    """From id, gateway, state, reason, attempts, error, time, `redelivery`, what is written down of
    the delivery, topic, partition and seq. Raises StorageFailed for what a store has damaged: a
    letter that says another place than its row has would be taken for another record's."""
    id_, gateway_id, state, reason, attempts, error, at_ms, redelivery, content, *place = row
    delivery = decoded(content, redelivery=bool(redelivery))
    if [delivery.topic, delivery.partition, delivery.seq] != place:
        raise _damaged("it is said to be of another record")
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
    """The same for an operator, who can do something about one that is damaged: what its columns
    say. Texts may come as bytes, which may be damaged, too."""
    try:
        if (reason := _texts(row, "strict")[3]) not in REASONS:
            raise _damaged(f"nobody knows the reason {reason}")
        return letter_of(_texts(row, "strict"))
    except UnicodeDecodeError as error:
        return _remains(row, str(error))
    except StorageFailed as error:
        return _remains(row, str(error.details["why"]))


def _texts(row: Sequence[Any], errors: str) -> list[Any]:
    return [
        one.decode(errors=errors) if at in TEXTS and isinstance(one, bytes) else one
        for at, one in enumerate(row)
    ]


def _remains(row: Sequence[Any], why: str) -> Letter:
    texts = _texts(row, "replace")
    id_, gateway_id, state, reason, attempts, error, at_ms, redelivery, _, *place = texts
    topic, partition, seq = place
    nothing = msgspec.Raw(b"null")
    delivery = Delivery(topic, partition, seq, "", None, "", "update", nothing, (), 0)
    return Letter(
        id=id_,
        gateway_id=gateway_id,
        state=state,
        reason=reason if reason in REASONS else "failed",
        delivery=replace(delivery, redelivery=bool(redelivery)),
        attempts=attempts,
        error=error,
        at_ms=at_ms,
        damage=why,
    )


def undamaged(content: bytes, place: tuple[str, int, int]) -> Delivery | None:
    """What is written down of the delivery of the record at that place (topic, partition, seq), or
    None where a store has damaged it."""
    try:
        delivery = decoded(content, redelivery=False)
    except StorageFailed:
        return None
    is_its_own = (delivery.topic, delivery.partition, delivery.seq) == place
    return delivery if is_its_own else None


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


def decoded(content: bytes, *, redelivery: bool) -> Delivery:
    """A delivery may also be one in itself: a partition that was reset brings its records again, in
    their order. Raises StorageFailed for what a store has damaged."""
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


def content_of(delivery: Delivery | None) -> bytes:
    """What is written down of the delivery: nothing of a damaged one, so that it can't be taken for
    whole."""
    return b"" if delivery is None else encoded(delivery)


def printable(error: str) -> str:
    """What a peer said, as every store can keep it: valid UTF-8 without zeros."""
    return error.encode("utf-8", "replace").decode().replace("\0", "?")
