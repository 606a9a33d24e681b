"""`Subscriber` for programs without an event loop: the same calls, which block.

with SyncSubscriber(url, "flights", where="alt > 10000") as subscriber:
    for item in subscriber:
        ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

from headgate.client.credentials import Token
from headgate.client.defaults import THIS_MACHINE
from headgate.client.subscriber import Subscriber
from headgate.client.sync.blocking_items import BlockingItems
from headgate.decide.conversation.common import Acks
from headgate.decide.conversation.subscription import Conditions
from headgate.model.api import DEFAULT_URL
from headgate.model.client_messages import Item, Subscribed
from headgate.model.subscription import Priority
from headgate.ports.connection import OpenLink
from headgate.ports.http import OpenCalls
from headgate.ports.machine import Machine


class SubscriptionOptions(TypedDict, total=False):
    """What `Subscriber.add` takes besides the topic."""

    id: str | None
    where: str | None
    filter: Conditions | None
    start: str
    priority: Priority
    tenant: str


class SubscriberOptions(SubscriptionOptions, total=False):
    """What `Subscriber` takes besides an address and a topic."""

    acks: Acks
    buffer: int
    buffer_bytes: int
    retry_attempts: int | None
    retry_for_s: float | None
    retry_first_s: float
    retry_max_s: float
    open_timeout_s: float
    silence_s: float
    token: Token | None
    machine: Machine
    open_calls: OpenCalls
    open_link: OpenLink


class SyncSubscriber(BlockingItems):
    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        topic: str = "",
        **options: Unpack[SubscriberOptions],
    ) -> None:
        self._subscriber = Subscriber(url, topic, **options)
        machine = options.get("machine", THIS_MACHINE)
        super().__init__("subscriber", self._subscriber._line, machine)

    def add(self, topic: str, **question: Unpack[SubscriptionOptions]) -> str:
        """Another subscription over the same connection, before that is opened; returns its id."""
        return self._subscriber.add(topic, **question)

    def ack(self, item: Item) -> None:
        """`item` and everything before it, of its partition and subscriptions, is processed."""
        self._await(lambda: self._acknowledged(item))

    async def _acknowledged(self, item: Item) -> None:
        self._subscriber.ack(item)

    @property
    def reconnects(self) -> int:
        return self._subscriber.reconnects

    @property
    def subscribed(self) -> Subscribed:
        return self._subscriber.subscribed

    @property
    def positions(self) -> dict[int, int]:
        """Of the first subscription: per partition, the last seq that a call has returned."""
        return self._told(lambda: dict(self._subscriber.positions))

    def positions_of(self, subscription: str) -> dict[int, int]:
        return self._told(lambda: self._subscriber.positions_of(subscription))
