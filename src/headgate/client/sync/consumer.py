"""`Consumer` for programs without an event loop: the same calls, which block.

    with SyncConsumer(topic="flights", group="radar", keys_expected=400) as consumer:
        for message in consumer:
            handle(message.key, message.document)

What a gateway asks for, such as a target that is wanted elsewhere, is heard while the handler
works: the loop is in another thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TypedDict, Unpack

from headgate import errors
from headgate.client.consumer import Consumer
from headgate.client.credentials import Token
from headgate.client.defaults import THIS_MACHINE
from headgate.client.sync.blocking_items import BlockingItems
from headgate.decide.conversation.common import Acks
from headgate.decide.conversation.subscription import Conditions
from headgate.model.api import DEFAULT_URL
from headgate.model.client_messages import Item, Joined
from headgate.ports.connection import OpenLink
from headgate.ports.http import OpenCalls
from headgate.ports.machine import Machine


class ConsumerOptions(TypedDict, total=False):
    """What `Consumer` takes besides an address, a topic and a group."""

    consumer: str | None
    keys_expected: int | None
    where: str | None
    filter: Conditions | None
    start: str
    acks: Acks
    max_deliveries: int
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


class SyncConsumer(BlockingItems):
    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        topic: str = "",
        group: str = "",
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._consumer = Consumer(url, topic, group, **options)
        machine = options.get("machine", THIS_MACHINE)
        super().__init__("consumer", self._consumer._line, machine)
        self.id = self._consumer.id

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, Exception):
                with suppress(errors.HeadgateError):  # it was closed already
                    self._await(self._consumer.failing)
        finally:
            super().__exit__(kind, error, trace)

    def acknowledge(self, message: Item) -> None:
        """`message` is processed; said at once."""
        self._await(lambda: self._consumer.acknowledge(message))

    def nack(self, message: Item, delay_s: float = 0.0) -> None:
        """`message` is not processed: it comes again after `delay_s`."""
        self._await(lambda: self._consumer.nack(message, delay_s))

    @property
    def reconnects(self) -> int:
        return self._consumer.reconnects

    @property
    def joined(self) -> Joined | None:
        return self._consumer.joined

    @property
    def targets(self) -> frozenset[int]:
        return self._consumer.targets
