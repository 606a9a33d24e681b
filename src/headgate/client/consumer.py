"""Consumes a topic together with others: every event goes to the one consumer that owns its key.

    async with Consumer(topic="flights", group="radar", keys_expected=400) as consumer:
        async for message in consumer:
            await handle(message.key, message.document)

Invariant: the events of one key come in their order, to one consumer at a time; one that wasn't
acknowledged comes again, here or to whoever owns its key by then. An event counts as processed when
the next one is asked for, or, with acks="manual", when it is acknowledged. What waits here is
bounded by what the gateway hands out without an acknowledgement.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from headgate import errors
from headgate.client.doors import Doors
from headgate.client.http import rebuild
from headgate.client.reopening import Patience
from headgate.client.share import Share
from headgate.client.subscription import Acks, Conditions, Event, Failure, Item, Left, Resync
from headgate.client.ws_link import WsLink
from headgate.model.api import DEFAULT_URL

ACK_EVERY = 32
ACK_EVERY_S = 0.05
"""Acknowledgements are said together: after so many, so long, or when nothing waits."""
BUFFER = 2_000
"""Messages that may wait here; a gateway hands out half as many events."""
LEAVE_TIMEOUT_S = 10.0
SUBSCRIBE_PATH = "/v1/subscribe"
CONSUME_PATH = "/v1/consume"


class Joined(msgspec.Struct, frozen=True, tag_field="type", tag="joined"):
    """The group as it is: its number of targets and its filter don't change any more."""

    topic: str
    group: str
    consumer: str
    targets: int
    where: str | None = None


class _Assigned(msgspec.Struct, frozen=True, tag_field="type", tag="assigned"):
    target: int
    epoch: int
    positions: dict[int, int]


class _Revoke(msgspec.Struct, frozen=True, tag_field="type", tag="revoke"):
    target: int
    epoch: int


class _Revoked(msgspec.Struct, frozen=True, tag_field="type", tag="revoked"):
    target: int
    epoch: int


class _Ended(msgspec.Struct, frozen=True, tag_field="type", tag="ended"):
    pass


_Control = Joined | _Assigned | _Revoke | _Revoked | _Ended | Failure
_decoder: msgspec.json.Decoder[Item | _Control] = msgspec.json.Decoder(Item | _Control)


class Consumer:
    """`consumer` is its id in the group, made up when it isn't given: one that comes back with its
    id soon enough keeps what it had. `keys_expected`, `where` (or `filter`) and `start` ("now",
    "earliest" or "PARTITION:SEQ,…") make the group when it is new; to a group that exists, only
    the filter has to fit. Reconnects like a Subscriber.
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
        retry_attempts: int | None = None,
        retry_for_s: float | None = None,
        retry_first_s: float = 0.1,
        retry_max_s: float = 5.0,
        open_timeout_s: float = 30.0,
        silence_s: float = 75.0,
    ) -> None:
        self.id = consumer or f"consumer-{secrets.token_hex(4)}"
        self.joined: Joined | None = None
        self.reconnects = 0
        self._request: dict[str, Any] = {
            "type": "join",
            "topic": topic,
            "group": group,
            "consumer": self.id,
            "incarnation": secrets.token_hex(8),
            "keys": keys_expected or 0,
            "from": start,
            **({} if where is None else {"where": where}),
            **({} if filter is None else {"filter": filter}),
        }
        self._acks = acks
        self._patience = Patience(retry_attempts, retry_for_s, retry_first_s, retry_max_s)
        self._open_timeout_s = open_timeout_s
        self._silence_s = silence_s
        self._doors = Doors(url)
        self._link: WsLink | None = None
        self._shares: dict[int, Share] = {}
        self._done: dict[tuple[int, int], int] = {}
        """Per target and partition how far this consumer itself has come, whoever heard of it."""
        self._waiting: deque[Item] = deque()
        self._consumed: Item | None = None
        self._unsaid = 0
        self._said_s = 0.0
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def targets(self) -> frozenset[int]:
        """What this consumer owns at the moment."""
        return frozenset(self._shares)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        self._acknowledge_consumed()
        while not self._closed.is_set():
            # First all that has arrived: a target that is asked for may have events among it.
            while self._link is not None and self._link.ready:
                await self._receive()
            while self._waiting:
                item = self._waiting.popleft()
                if self._hand_out(item):
                    self._consumed = item
                    return item
            self._say_acknowledged()
            await self._receive()
        raise StopAsyncIteration

    async def acknowledge(self, message: Item) -> None:
        """`message` is processed; said at once.

        What this consumer doesn't own any more will be processed by whoever does, so that nothing
        is said about it.
        """
        self._acknowledge(message)
        self._say_acknowledged()

    async def close(self) -> None:
        """Leave the group; what wasn't acknowledged goes to others. Doing it twice is fine."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._link is not None:
            self._say_acknowledged()
            self._link.send(_encoded({"type": "leave"}))
            await self._until_ended(self._link)
            self._link.close()
        self._shares.clear()
        await self._doors.close()

    # --- acknowledging ---------------------------------------------------------------------------

    def _acknowledge_consumed(self) -> None:
        """Whoever asks for the next message is done with the one before."""
        consumed, self._consumed = self._consumed, None
        if consumed is None or self._acks != "auto":
            return
        self._acknowledge(consumed)
        late = asyncio.get_running_loop().time() - self._said_s >= ACK_EVERY_S
        if self._unsaid >= ACK_EVERY or late:
            self._say_acknowledged()

    def _acknowledge(self, item: Item) -> None:
        share = self._shares.get(item.target)
        if share is None or share.epoch != item.epoch or _is_redelivery(item):
            return
        position = share.acknowledge(item.partition, _seq(item))
        if position:
            place = item.target, item.partition
            self._done[place] = max(position, self._done.get(place, 0))
        self._unsaid += 1
        if share.leaving and not share.in_hand:
            self._say_acknowledged()
            self._release(share)

    def _say_acknowledged(self) -> None:
        self._unsaid = 0
        self._said_s = asyncio.get_running_loop().time()
        for share in self._shares.values():
            if (positions := share.unsaid()) is not None:
                self._say(share, "ack", positions=positions)

    def _release(self, share: Share) -> None:
        del self._shares[share.target]
        self._say(share, "released")

    def _say(self, share: Share, kind: str, **rest: Any) -> None:
        if self._link is not None:
            said = {"type": kind, "target": share.target, "epoch": share.epoch, **rest}
            self._link.send(_encoded(said))

    # --- what comes ------------------------------------------------------------------------------

    async def _receive(self) -> None:
        """Take in the next message; opens the connection again when it is lost."""
        message = await self._next()
        match message:
            case Event() | Left() | Resync():
                self._waiting.append(message)
            case _Assigned(target, epoch):
                self._shares[target] = Share(target, epoch)
            case _Revoke(target, epoch):
                self._asked_for(target, epoch)
            case _Revoked(target, epoch):
                share = self._shares.get(target)
                if share is not None and share.epoch == epoch:
                    del self._shares[target]
            case Failure():
                await self._failed(message)
            case None:
                await self._reopen(errors.PeerUnreachable("the gateway closed the connection"))
            case Joined() | _Ended():
                pass

    def _hand_out(self, item: Item) -> bool:
        """False for what isn't ours any more, or was processed here before."""
        share = self._shares.get(item.target)
        if share is None or share.epoch != item.epoch or share.leaving:
            return False
        if _is_redelivery(item):
            return True
        share.hand_out(item.partition, _seq(item))
        if _seq(item) <= self._done.get((item.target, item.partition), 0):
            self._acknowledge(item)
            return False
        return True

    def _asked_for(self, target: int, epoch: int) -> None:
        share = self._shares.get(target)
        if share is not None and share.epoch == epoch:
            share.leaving = True
            if not share.in_hand:
                self._say_acknowledged()
                self._release(share)

    async def _failed(self, failure: Failure) -> None:
        error = rebuild(failure.error)
        if failure.target is not None and isinstance(error, errors.Fenced):
            return  # it was ours when we spoke of it
        if not isinstance(error, errors.NotNow):
            raise error
        await self._reopen(error)

    async def _next(self) -> Item | _Control | None:
        """None when the connection is lost."""
        if self._link is None:
            return None
        raw = await self._link.receive(self._silence_s)
        if raw is None:
            return None
        try:
            return _decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise errors.InvalidRequest(
                "the gateway sent a message that this version does not know; upgrade headgate"
            ) from error

    # --- one connection --------------------------------------------------------------------------

    async def _open(self) -> None:
        """Connect and join."""
        if not self._request["topic"] or not self._request["group"]:
            raise errors.InvalidRequest("name a topic and a group: Consumer(topic=…, group=…)")
        if self._link is not None:
            self._link.abort()
            self._link = None
        self._waiting.clear()
        try:
            async with asyncio.timeout(self._open_timeout_s):
                self._link = await self._connected()
                self._link.send(_encoded(self._request))
                self.joined = await self._until_joined()
        except TimeoutError as error:
            raise errors.Timeout(
                f"no gateway gave an answer within {self._open_timeout_s:g} s; try again"
            ) from error
        # What was owned before is given anew, or not any more.
        self._shares.clear()
        self._unsaid = 0

    async def _connected(self) -> WsLink:
        """To the first gateway that is there."""
        way = await self._doors.way_in()
        while True:
            try:
                return await WsLink.open(
                    f"{way.door.removesuffix(SUBSCRIBE_PATH)}{CONSUME_PATH}?v=1", BUFFER
                )
            except errors.PeerUnreachable as error:
                way.failed(error)

    async def _until_joined(self) -> Joined:
        while True:
            match await self._next():
                case Joined() as joined:
                    return joined
                case Failure(error):
                    raise rebuild(error)
                case None:
                    raise errors.PeerUnreachable("the gateway closed the connection; try again")
                case _:
                    raise errors.InvalidRequest("the gateway doesn't speak to consumers")

    async def _until_ended(self, link: WsLink) -> None:
        """Wait for the gateway to have saved what was acknowledged, for a while."""
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                while (raw := await link.receive(LEAVE_TIMEOUT_S)) is not None:
                    if isinstance(_decoder.decode(raw), _Ended):
                        return
        except (TimeoutError, msgspec.DecodeError):
            return

    async def _reopen(self, reason: errors.NotNow) -> None:
        if await self._patience.reopen(self._open, reason, self._closed):
            self.reconnects += 1


def _seq(item: Item) -> int:
    return item.from_seq - 1 if isinstance(item, Resync) else item.seq


def _is_redelivery(item: Item) -> bool:
    return not isinstance(item, Resync) and item.redelivery


def _encoded(message: dict[str, Any]) -> bytes:
    return msgspec.json.encode(message)
