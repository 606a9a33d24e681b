"""How letter stores write a delivery down, so that nothing of the event is lost.

The delivery is stored whole, as JSON; what a store filters or changes has a column besides, and of
those only `redelivery` (an operator wants it sent again) changes what comes back.
"""

from __future__ import annotations

import msgspec

from headgate.errors import StorageFailed
from headgate.model.delivery import Delivery
from headgate.model.event import UNDECODABLE

encoded = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Delivery).decode


def decoded(content: bytes, *, redelivery: bool) -> Delivery:
    """A delivery may also be one in itself: a partition that was reset brings its records again, in
    their order. Raises StorageFailed for what a store has damaged."""
    try:
        delivery = _decode(content)
    except UNDECODABLE as error:
        raise StorageFailed(
            f"a letter is damaged ({error}); restore the store of letters from a copy"
        ) from error
    if delivery.redelivery or not redelivery:
        return delivery
    return msgspec.structs.replace(delivery, redelivery=True)


def printable(error: str) -> str:
    """What a peer said, as every store can keep it: valid UTF-8 without zeros."""
    return error.encode("utf-8", "replace").decode().replace("\0", "?")
