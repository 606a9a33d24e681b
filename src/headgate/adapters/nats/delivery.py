"""Batches over NATS: a request to the gateway's subject, its verdicts as the reply.

A bare publish would not be a delivery: only the reply is an acknowledgement. A batch beyond what
the server passes on in one message is sent in parts, one after the other, so the order stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import nats.errors
from msgspec import structs
from nats.aio.client import Client
from nats.aio.msg import Msg

from headgate.adapters.delivery_outcome import UnderWay, no_answer
from headgate.adapters.delivery_wire import (
    AUTHORIZATION,
    NODE_HEADER,
    Admit,
    Outgoing,
    answer_to,
    encode_batch,
    encode_lines,
    read_reply,
    refusal_reply,
    reply_to,
)
from headgate.adapters.nats.connection import connect, disconnect
from headgate.decide.links.concealing import without_credentials
from headgate.decide.links.passes import bearer
from headgate.errors import HeadgateError, PeerUnreachable, TooLarge, Unauthorized
from headgate.model.delivery import (
    SETTLING_VERDICTS,
    Delivery,
    DeliveryAnswer,
    DeliveryBatch,
    Verdict,
)
from headgate.ports.transport import Accept, Meanwhile
from headgate.tasks import Crew

SCHEME = "nats://"
QUEUE = "gateway"
"""Shared by the listeners of a subject, should there ever be two: one of them gets a batch, never
both."""
AGAIN_AFTER_S = 1.0
ANSWERING_MAX = 1_000
"""Batches that are answered at a time, as over HTTP/2; the others wait outside."""
ANSWERING_BYTES = 128 * 1024 * 1024
"""What they have, about; as much as the library keeps of those that wait."""
START_TIMEOUT_S = 10.0
HEADERS_BYTES = 64
"""What NATS counts of a message's headers besides their names and values, generously."""
TURNS_TO_LEAVE = 3
"""Of the event loop: the request is queued in the first, and written in the second."""


class NatsDeliveryTransport:
    """Implements ports.transport.DeliveryTransport for nats://SUBJECT addresses.

    `token` is that of NATS, `shown` what it shows to gateways.
    """

    def __init__(
        self,
        node_id: str,
        servers: str,
        *,
        token: str = "",
        authority: str = "",
        shown: str = "",
    ) -> None:
        self._node_id = node_id
        self._headers = {AUTHORIZATION: bearer(shown), NODE_HEADER: node_id} if shown else None
        self._headers_bytes = 0
        if self._headers is not None:
            self._headers_bytes = HEADERS_BYTES + len("".join(sum(self._headers.items(), ())))
        self._servers, self._shown = servers, without_credentials(servers)
        self._token = token
        self._authority = authority
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._outgoing = Outgoing(encode_lines)
        self._under_way = UnderWay()

    def prepare(self, url: str, batch: DeliveryBatch) -> None:
        self._outgoing.prepare(url, batch)

    async def deliver(
        self,
        url: str,
        batch: DeliveryBatch,
        *,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        try:
            async with self._under_way.within(url, timeout_s):
                client = await self._connected(url)
                return await self._deliver(client, url, batch, timeout_s, meanwhile)
        except nats.errors.NoRespondersError as error:
            raise no_answer(url, "nobody listens there") from error
        except (nats.errors.Error, OSError) as error:
            raise no_answer(url, error) from error

    async def close(self) -> None:
        self._under_way.end()
        client, self._client = self._client, None
        if client is not None:
            await disconnect(client)

    async def _connected(self, url: str) -> Client:
        client = self._client
        if client is None or client.is_closed:
            async with self._connecting:
                client = self._client
                if client is None or client.is_closed:
                    client = self._client = await connect(
                        self._servers,
                        name=self._node_id,
                        token=self._token,
                        authority=self._authority,
                        closed=asyncio.Event(),
                    )
        if not client.is_connected:
            # Rather than into a buffer that is sent whenever the server is back.
            raise no_answer(url, f"the connection to NATS at {self._shown} is down")
        return client

    async def _deliver(
        self,
        client: Client,
        url: str,
        batch: DeliveryBatch,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        data = self._outgoing.encoded(url, batch)
        room_bytes = client.max_payload - self._headers_bytes
        if len(data) > room_bytes and len(batch.deliveries) == 1:
            data = encode_batch(batch)  # may be smaller than lines
        if len(data) > room_bytes:
            return await self._in_parts(client, url, batch, timeout_s)
        request = client.request(
            url.removeprefix(SCHEME), data, timeout=timeout_s, headers=self._headers
        )
        reply = await answer_to(request, meanwhile, turns=TURNS_TO_LEAVE)
        return read_reply(url, reply.data, batch)

    async def _in_parts(
        self, client: Client, url: str, batch: DeliveryBatch, timeout_s: float
    ) -> DeliveryAnswer:
        """Both halves, the second behind the first; a single delivery is refused for good.

        What is behind one that isn't settled, of the same partition, comes again. A redelivery that
        was put off must not be passed, unless the gateway sees to that (`GoOn`); and until one that
        is refused has its letter, a gateway that has newer ones would take it for a repeat, should
        the next lane send it after all.
        """
        if len(batch.deliveries) == 1:
            raise TooLarge(
                f"event {batch.deliveries[0].event_id} is larger than the {client.max_payload} "
                "bytes that NATS passes on; raise its max_payload",
                limit_bytes=client.max_payload,
            )
        middle = len(batch.deliveries) // 2
        front, rest = batch.deliveries[:middle], batch.deliveries[middle:]
        first = await self._part(client, url, structs.replace(batch, deliveries=front), timeout_s)
        pages = {(one.topic, one.partition): one for one in first.go_on}
        held = {
            (one.topic, one.partition)
            for one, verdict in zip(front, first.verdicts, strict=True)
            if verdict not in SETTLING_VERDICTS
            and (verdict != "retry" or (one.topic, one.partition) not in pages)
        }
        reached = {(one.topic, one.partition): one.seq for one in front}
        going = tuple(
            _behind(reached.get(where), one)
            for one in rest
            if (where := (one.topic, one.partition)) not in held
        )
        second = DeliveryAnswer(())
        if going:
            part = structs.replace(batch, deliveries=going)
            second = await self._part(client, url, part, timeout_s)
        said = iter(second.verdicts)
        verdicts: list[Verdict] = [
            "retry" if (one.topic, one.partition) in held else next(said) for one in rest
        ]
        for one in rest:
            pages.pop((one.topic, one.partition), None)
        # An answer that was made here knows nothing of the gateway.
        return DeliveryAnswer(
            (*first.verdicts, *verdicts),
            fill=max(first.fill, second.fill),
            go_on=(*pages.values(), *second.go_on),
        )

    async def _part(
        self, client: Client, url: str, batch: DeliveryBatch, timeout_s: float
    ) -> DeliveryAnswer:
        try:
            return await self._deliver(client, url, batch, timeout_s)
        except TooLarge:
            if len(batch.deliveries) > 1:
                raise
            # The others of the batch have nothing to do with it.
            return DeliveryAnswer(("rejected",))


def _behind(seq: int | None, delivery: Delivery) -> Delivery:
    """As one of a page that begins behind `seq`, where it is of a page at all."""
    if seq is None or not delivery.from_seq:
        return delivery
    return structs.replace(delivery, from_seq=seq + 1)


class NatsDeliveryServer:
    """A gateway's end: one subject, answered for as long as it runs, whatever NATS does. Batches
    are begun with in the order in which they come; one that takes long holds no other."""

    def __init__(
        self,
        accept: Accept,
        servers: str,
        *,
        name: str,
        token: str = "",
        authority: str = "",
        admit: Admit | None = None,
    ) -> None:
        self._accept = accept
        self._admit = admit
        self._servers, self._shown = servers, without_credentials(servers)
        self._name = name
        self._token = token
        self._authority = authority
        self._subject = ""
        self._client: Client | None = None
        self._closed = asyncio.Event()
        self._crew = Crew("nats")
        self._answering: set[asyncio.Task[None]] = set()
        self._answering_bytes = 0
        self._room = asyncio.Event()

    async def start(self, subject: str, on_lost: Callable[[HeadgateError], None]) -> str:
        """Returns the address once NATS passes batches on. `on_lost` is told why the connection
        can't be made again, each time that fails."""
        self._subject = subject
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._subscribe()
        self._crew.keep("deliveries", partial(self._keep, on_lost))
        return SCHEME + subject

    async def stop(self) -> None:
        await self._crew.close()
        if self._client is not None:
            await disconnect(self._client)

    async def failed(self) -> None:
        """Waits for as long as it can answer, and raises what keeps it from doing so."""
        await self._crew.failed()

    async def _keep(self, on_lost: Callable[[HeadgateError], None]) -> None:
        """The library reconnects by itself, but gives up where NATS refuses it."""
        while True:
            await self._closed.wait()
            try:
                await self._subscribe()
            except HeadgateError as error:
                on_lost(error)
                await asyncio.sleep(AGAIN_AFTER_S)

    async def _subscribe(self) -> None:
        self._closed = closed = asyncio.Event()
        try:
            client = self._client = await self._connected(closed)
            await client.subscribe(self._subject, queue=QUEUE, cb=self._answer)
            await client.flush()
        except (nats.errors.Error, OSError) as error:
            closed.set()
            raise PeerUnreachable(f"NATS at {self._shown} can't be reached: {error}") from error
        except Exception:
            closed.set()  # whatever it was, there is no connection: it is made again
            raise

    async def _connected(self, closed: asyncio.Event) -> Client:
        return await connect(
            self._servers,
            name=self._name,
            token=self._token,
            authority=self._authority,
            closed=closed,
        )

    async def _answer(self, message: Msg) -> None:
        """The library waits for one to return before it calls for the next: what becomes of a batch
        may take long, and is nothing to the others."""
        # Without a reply the sender would learn nothing, so it isn't a delivery.
        if not message.reply:
            return
        while len(self._answering) >= ANSWERING_MAX or self._answering_bytes >= ANSWERING_BYTES:
            self._room.clear()
            await self._room.wait()
        size_bytes = len(message.data)
        answering = self._crew.start("answering", self._answered(message))
        self._answering.add(answering)
        self._answering_bytes += size_bytes
        answering.add_done_callback(partial(self._is_answered, size_bytes))

    def _is_answered(self, size_bytes: int, answering: asyncio.Task[None]) -> None:
        self._answering.discard(answering)
        self._answering_bytes -= size_bytes
        self._room.set()

    async def _answered(self, message: Msg) -> None:
        reply = await self._reply_to(message)
        # Where the connection has gone meanwhile, the sender learns that by itself.
        with contextlib.suppress(nats.errors.Error, OSError):
            await message.respond(reply)

    async def _reply_to(self, message: Msg) -> bytes:
        if self._admit is not None:
            given = message.headers or {}
            try:
                self._admit(given.get(AUTHORIZATION, ""), given.get(NODE_HEADER, ""))
            except Unauthorized as error:
                return refusal_reply(error)
        return await reply_to(message.data, self._accept)
