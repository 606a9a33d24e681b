"""How letter stores write a delivery down, so that nothing of the event is lost.

The delivery is stored whole, as JSON; what a store filters or changes has a column besides, and of
those only `redelivery` changes what comes back.
"""

from __future__ import annotations

import msgspec

from headgate.model.delivery import Delivery

encoded = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Delivery).decode


def decoded(content: bytes, *, redelivery: bool) -> Delivery:
    delivery = _decode(content)
    if delivery.redelivery == redelivery:
        return delivery
    return msgspec.structs.replace(delivery, redelivery=redelivery)


def printable(error: str) -> str:
    """What a peer said, as every store can keep it: valid UTF-8 without zeros."""
    return error.encode("utf-8", "replace").decode().replace("\0", "?")
