"""A standing question: which records of a topic does somebody want to hear about?"""

from __future__ import annotations

from typing import Literal

import msgspec

Priority = Literal["high", "normal", "low"]


class Subscription(msgspec.Struct, frozen=True):
    """One live subscription, owned by the gateway that registered it.

    `where` is a CEL expression over the document's fields; None matches every record.
    """

    id: str
    gateway_id: str
    topic: str
    where: str | None = None
    priority: Priority = "normal"
