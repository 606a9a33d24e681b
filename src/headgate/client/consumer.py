"""Consumes a topic together with others: every event goes to the one consumer that owns its key.

    async with Consumer(topic="flights", group="radar", keys_expected=400) as consumer:
        async for message in consumer:
            await handle(message.key, message.document)

Invariant: the events of one key come in their order, to one consumer at a time; one that wasn't
acknowledged comes again, here or to the consumer that owns its key by then. An event counts as
processed when the task that took it asks for the next one or has ended, or, with acks="manual",
when it is acknowledged. What waits here is bounded: by what the gateway hands out without an
acknowledgement and, whatever else it sends, by `BUFFER`. Below that the gateway is heard at once,
also while a handler works: a target that it asks for is given back when nothing of it is in hand.
Any call may be cancelled.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from headgate import errors
from headgate.client.credentials import Token, credentials
from headgate.client.defaults import THIS_MACHINE, open_calls, open_link
from headgate.client.gateway_choice import Doors, Way
from headgate.client.identified_link import identified
from headgate.client.line import Line
from headgate.client.texts import plain
from headgate.decide.conversation.common import Acks
from headgate.decide.conversation.consumer import Membership
from headgate.decide.conversation.patience import Patience
from headgate.decide.conversation.subscription import Conditions
from headgate.model.api import DEFAULT_URL
from headgate.model.client_messages import Item, Joined, ToConsumer, decode_for_consumer
from headgate.ports.connection import OpenLink
from headgate.ports.http import OpenCalls
from headgate.ports.machine import Machine

BUFFER = 2_000
"""Messages that may wait here; a gateway hands out half as many events."""
BUFFER_BYTES = 128 * 1024 * 1024
"""Of their documents; likewise."""
SUBSCRIBE_PATH = "/v1/subscribe"
CONSUME_PATH = "/v1/consume"

__all__ = ["Consumer", "Item", "Joined"]


class Consumer:
    """`consumer` is its id in the group, made up when it isn't given: one that comes back with its
    id soon enough keeps what it had. `keys_expected`, `where` (or `filter`) and `start` (as of a
    Subscriber) make the group when it is new; to a group that exists, only the filter has to fit.
    Reconnects like a Subscriber.

    What was handed out `max_deliveries` times in vain (nacked, or in hand when an exception left
    the `async with`, the process died or its time was over) becomes a dead letter of the group, and
    the group goes on; 0 hands it out for ever. Only certain failures count as the last one: see
    docs/client.md.

    `machine`, `open_calls` and `open_link` are for tests: time, chance and threads are this
    machine's, its calls HTTP and its connections WebSockets.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        topic: str = "",
        group: str = "",
        *,
        consumer: str | None = None,
        keys_expected: int | None = None,
        where: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - the name on the wire
        start: str = "now",
        acks: Acks = "auto",
        max_deliveries: int = 0,
        retry_attempts: int | None = None,
        retry_for_s: float | None = None,
        retry_first_s: float = 0.1,
        retry_max_s: float = 5.0,
        open_timeout_s: float = 30.0,
        silence_s: float = 75.0,
        token: Token | None = None,
        machine: Machine = THIS_MACHINE,
        open_calls: OpenCalls = open_calls,
        open_link: OpenLink = open_link,
    ) -> None:
        self.id = plain("consumer", consumer or f"consumer-{machine.token(4)}")
        request: dict[str, Any] = {
            "type": "join",
            "topic": plain("topic", topic),
            "group": plain("group", group),
            "consumer": self.id,
            "incarnation": machine.token(8),
            "keys": keys_expected or 0,
            "from": plain("start", start),
            **({} if where is None else {"where": plain("where", where)}),
            **({} if filter is None else {"filter": filter}),
            **({"max_deliveries": max_deliveries} if max_deliveries else {}),
        }
        patience = Patience(retry_attempts, retry_for_s, retry_first_s, retry_max_s)
        self._membership = Membership(acks, patience, request, max_deliveries=max_deliveries)
        said = credentials(token, machine)
        self._line: Line[ToConsumer] = Line(
            self._membership,
            decode_for_consumer,
            name="consumer",
            doors=Doors(url, open_calls=open_calls, machine=machine, credentials=said),
            url_of=_consume_url,
            room=BUFFER,
            room_bytes=BUFFER_BYTES,
            open_timeout_s=open_timeout_s,
            silence_s=silence_s,
            open_link=open_link if said is None else identified(open_link, said, machine),
            machine=machine,
        )

    async def __aenter__(self) -> Self:
        await self._line.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            await self.failing()
        await self.close()

    async def failing(self) -> None:
        """The program fails with what it has in hand, and is about to close this: with
        `max_deliveries` that counts. The end of an `async with` by an exception says so."""
        self._line.do(self._membership.failing())

    @property
    def reconnects(self) -> int:
        """How often a lost connection was opened again."""
        return self._membership.reconnects

    @property
    def joined(self) -> Joined | None:
        """The group as the gateway described it, at the last joining."""
        return self._membership.joined

    @property
    def targets(self) -> frozenset[int]:
        """What this consumer owns at the moment; nothing while it isn't connected."""
        return self._membership.targets

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Item]:
        return self._line.next()

    async def acknowledge(self, message: Item) -> None:
        """`message` is processed; said at once.

        What this consumer doesn't own any more will be processed by the one that does, so that
        nothing is said about it.
        """
        now_s = asyncio.get_running_loop().time()
        self._line.do(self._membership.ack(message, now_s))

    async def nack(self, message: Item, delay_s: float = 0.0) -> None:
        """`message` is not processed: it comes again, here, after `delay_s`, and nothing that came
        after it of its key before that.

        It goes to the next owner at once where its target is wanted elsewhere, and comes at once
        after a lost connection. What isn't in hand any more is left alone. With `max_deliveries`
        it counts as a failure; the last one makes it a dead letter.
        """
        if not 0.0 <= delay_s < math.inf:
            raise errors.InvalidRequest(f"a message can't come again after {delay_s} s")
        now_s = asyncio.get_running_loop().time()
        self._line.do(self._membership.nack(message, delay_s, now_s))

    async def close(self) -> None:
        """Leave the group; what wasn't acknowledged goes to others. Doing it twice is fine."""
        await self._line.close()


def _consume_url(way: Way) -> str:
    return f"{way.door.removesuffix(SUBSCRIBE_PATH)}{CONSUME_PATH}?v=1"
