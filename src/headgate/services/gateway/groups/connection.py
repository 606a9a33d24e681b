"""One connection of a consumer: its messages in, its targets' events out.

Invariants: one consumer per connection, which ends with it; what isn't a message of the protocol
ends the connection, a request that can't be granted is answered and nothing else happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from headgate import errors
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.groups.consumer import GroupConsumer
from headgate.services.gateway.groups.consumers import Consumers
from headgate.services.gateway.groups.protocol import (
    AboutTarget,
    Join,
    Leave,
    TargetAck,
    TargetHeld,
    TargetNack,
    TargetRenewal,
    parse_consumer,
    seqs_in,
)
from headgate.services.gateway.groups.target import Acknowledged
from headgate.services.gateway.subscriptions.protocol import Misfit, Ping, positions_in
from headgate.services.gateway.text_messages import TextConnection
from headgate.services.gateway.wire import (
    CLOSE_OK,
    ENDED,
    error_message,
    pong_message,
    target_error,
)


class ConsumerConnection(TextConnection):
    """Implements consumer.Sink. `refusal` ends it at once."""

    def __init__(
        self,
        consumers: Consumers,
        connections: dict[TextConnection, None],
        refusal: errors.HeadgateError | None,
        entry: Entry | None = None,
    ) -> None:
        super().__init__(connections, entry)
        self._consumers = consumers
        self._refusal = refusal
        self._joining: asyncio.Task[None] | None = None
        self._consumer: GroupConsumer | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.has_left = False

    # --- from the wire ---------------------------------------------------------------------------

    def begun(self) -> None:
        if self._refusal is not None:
            self.fail(self._refusal)

    def writable(self) -> None:
        self.outlet.resume(())
        if self._consumer is not None and self.free:
            self._consumer.flush()

    def ended(self) -> None:
        if self.has_left:
            return  # that goes on without it
        if self._joining is not None:
            self._joining.cancel()
        if self._consumer is not None:
            failed = not self.is_ended_here
            self._leave(self._consumers.gone(self._consumer, failed=failed))

    def said(self, payload: bytes) -> None:
        try:
            message = parse_consumer(payload)
        except errors.InvalidRequest as error:
            self.fail(error)
            return
        match message:
            case Misfit():
                self.answer(error_message(message.error))
            case Ping():
                self.answer(pong_message(message.id))
            case Join():
                self._join(message)
            case Leave():
                self.has_left = True
                self._leave(self._left(failed=message.failed))
            case _:
                try:
                    self._obey(message)
                except errors.HeadgateError as error:
                    self.answer(target_error(error, message.target))

    def _obey(self, message: AboutTarget) -> None:
        if self._consumer is None:
            raise errors.InvalidRequest("join a group first; nothing was sent")
        if isinstance(message, TargetAck):
            redelivered = seqs_in(message.redelivered, "redelivered")
            processed = seqs_in(message.processed, "processed")
            is_about_those = (redelivered or processed) and not message.positions
            positions = {} if is_about_those else positions_in(message.positions)
            acks = Acknowledged(positions, redelivered, processed)
            self._consumer.acknowledge(message.target, message.epoch, acks)
        elif isinstance(message, TargetNack):
            place = message.partition, message.seq
            self._consumer.nack(
                message.target,
                message.epoch,
                place,
                message.deliveries,
                redelivery=message.redelivery,
            )
        elif isinstance(message, TargetHeld):
            self._consumer.holds_back(message.target, message.epoch, message.items)
        elif isinstance(message, TargetRenewal):
            self._consumer.renew(message.target, message.epoch)
        else:
            self._consumer.released(message.target, message.epoch)

    # --- joining and leaving ---------------------------------------------------------------------

    def _join(self, message: Join) -> None:
        if self._joining is not None:
            self.answer(
                error_message(
                    errors.InvalidRequest(
                        "this connection has joined already; open another one for another consumer"
                    )
                )
            )
            return
        self._joining = self._consumers.crew.start(
            "joining", self._joined(message), about=message.group
        )

    async def _joined(self, message: Join) -> None:
        try:
            self._consumer = await self._consumers.join(message, self, self.entry)
        except errors.HeadgateError as error:
            self.entry.refused(error)
            self.fail(error)
            return
        except Exception:
            self.fail(errors.NotNow("something went wrong here; the server's log says what"))
            raise

    async def _left(self, *, failed: bool) -> None:
        """Answered once everything is saved and the coordinator told. A join that is under way
        goes on until then: the coordinator may know this consumer from another gateway, which no
        longer speaks for it, and hears that it leaves from the one where it joins."""
        if self._joining is not None:
            await asyncio.wait([self._joining])
        if self._consumer is not None:
            await self._consumers.gone(self._consumer, failed=failed)
        self.close(CLOSE_OK, ENDED)

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._consumers.crew.start("leaving", work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # --- what its consumer writes ----------------------------------------------------------------

    @property
    def free(self) -> bool:
        is_over = self._closing or self.has_left
        return self._outlet is not None and self._outlet.free and not is_over

    def send(self, message: bytes) -> None:
        self.outlet.send(message)
