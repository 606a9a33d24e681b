"""How letter stores write a delivery down, so that nothing of the event is lost.

The delivery is stored whole, as JSON; what a store filters or changes has a column besides, and of
those only `redelivery` (an operator wants it sent again) changes what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.errors import StorageFailed
from headgate.model.delivery import Delivery
from headgate.model.event import UNDECODABLE
from headgate.model.letters import Letter

encoded = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Delivery).decode


def letter_of(row: Sequence[Any]) -> Letter:
    """From id, gateway, state, reason, attempts, error, time, `redelivery`, what is written down of
    the delivery, topic, partition and seq. Raises StorageFailed for what a store has damaged: a
    letter that says another place than its row has would be taken for somebody else's."""
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


def decoded(content: bytes, *, redelivery: bool) -> Delivery:
    """A delivery may also be one in itself: a partition that was reset brings its records again, in
    their order. Raises StorageFailed for what a store has damaged."""
    try:
        delivery = _decode(content)
    except UNDECODABLE as error:
        raise _damaged(error) from error
    if delivery.redelivery or not redelivery:
        return delivery
    return msgspec.structs.replace(delivery, redelivery=True)


def _damaged(why: object) -> StorageFailed:
    return StorageFailed(f"a letter is damaged ({why}); restore the store of letters from a copy")


def printable(error: str) -> str:
    """What a peer said, as every store can keep it: valid UTF-8 without zeros."""
    return error.encode("utf-8", "replace").decode().replace("\0", "?")
