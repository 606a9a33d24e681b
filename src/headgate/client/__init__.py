"""What a user's program imports: the clients, what they are given, and what they give back.

Each name is imported from its module when it is asked for, so that a program that only sends
doesn't wait for the import of what receives.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.client.consumer import Consumer
    from headgate.client.producer import Producer
    from headgate.client.producing.outgoing import Document, Outcome, OutgoingEvent, Receipt
    from headgate.client.producing.pending import ProducerOptions
    from headgate.client.subscriber import Event, Item, Left, Resync, Subscriber
    from headgate.client.sync.consumer import ConsumerOptions, SyncConsumer
    from headgate.client.sync.producer import SyncProducer
    from headgate.client.sync.subscriber import (
        SubscriberOptions,
        SubscriptionOptions,
        SyncSubscriber,
    )
    from headgate.decide.conversation.common import Acks
    from headgate.decide.conversation.subscription import Conditions
    from headgate.model.client_messages import Joined, Subscribed
    from headgate.model.event import Op, ProducedOp
    from headgate.model.subscription import Priority
else:
    _NAMES = {
        "client.consumer": ("Consumer",),
        "client.producing.outgoing": ("Document", "Outcome", "OutgoingEvent", "Receipt"),
        "client.producing.pending": ("ProducerOptions",),
        "client.producer": ("Producer",),
        "client.subscriber": ("Event", "Item", "Left", "Resync", "Subscriber"),
        "client.sync.consumer": ("ConsumerOptions", "SyncConsumer"),
        "client.sync.producer": ("SyncProducer",),
        "client.sync.subscriber": ("SubscriptionOptions", "SubscriberOptions", "SyncSubscriber"),
        "decide.conversation.common": ("Acks",),
        "decide.conversation.subscription": ("Conditions",),
        "model.client_messages": ("Joined", "Subscribed"),
        "model.event": ("Op", "ProducedOp"),
        "model.subscription": ("Priority",),
    }
    _MODULES = {name: module for module, names in _NAMES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"headgate.{_MODULES[name]}"), name)

    def __dir__() -> list[str]:
        return __all__


__all__ = [
    "Acks",
    "Conditions",
    "Consumer",
    "ConsumerOptions",
    "Document",
    "Event",
    "Item",
    "Joined",
    "Left",
    "Op",
    "Outcome",
    "OutgoingEvent",
    "Priority",
    "ProducedOp",
    "Producer",
    "ProducerOptions",
    "Receipt",
    "Resync",
    "Subscribed",
    "Subscriber",
    "SubscriberOptions",
    "SubscriptionOptions",
    "SyncConsumer",
    "SyncProducer",
    "SyncSubscriber",
]
