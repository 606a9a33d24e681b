"""What only NATS brings with it: a server in between, with its own limits and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from headgate import errors
from headgate.adapters.delivery_wire import encode_batch, encode_lines
from headgate.adapters.listeners import ListenerOptions, NatsListener
from headgate.adapters.nats import delivery as nats_delivery
from headgate.adapters.processes import free_port
from headgate.adapters.transports import Transports
from headgate.model.delivery import Batch, DeliveryAnswer, DeliveryBatch
from tests.adapters.transports.stage import (
    GATEWAY,
    TIMEOUT_S,
    Accepting,
    Book,
    batch,
    delivery,
)
from tests.servers.nats import Nats
from tests.waiting import WAIT_S, until

NATS_DEFAULT_MAX_PAYLOAD = 1024 * 1024


@pytest.fixture
def own_nats() -> Iterator[Nats]:
    """One to break."""
    with Nats() as server:
        yield server


def listener(server: Nats, accept: Accepting, *, incarnation: str = "1") -> NatsListener:
    options = ListenerOptions(protocol="nats", nats=server.url)
    return NatsListener(options, GATEWAY, accept, incarnation=incarnation)


async def test_a_second_process_of_the_same_name_gets_nothing_that_is_for_the_first(
    nats: Nats,
) -> None:
    """It knows none of its subscribers, and would say that nobody wants it."""
    first, second = Book(), Book()
    receiving, other = listener(nats, first), listener(nats, second, incarnation="2")
    url = await receiving.start()
    await other.start()
    lanes = Transports("lanes-1", nats=nats.url)
    for seq in range(1, 21):
        await lanes.deliver(url, batch(delivery(seq)), timeout_s=TIMEOUT_S)
    await lanes.close()
    for one in (receiving, other):
        await one.stop(1.0)
    assert ([one.seq for one in first.deliveries], second.deliveries) == ([*range(1, 21)], [])


async def test_deliveries_go_on_by_themselves_after_a_restart_of_the_server(
    own_nats: Nats,
) -> None:
    book = Book()
    receiving = listener(own_nats, book)
    url = await receiving.start()
    lanes = Transports("lanes-1", nats=own_nats.url)
    taken: list[int] = []
    resumed = asyncio.Event()

    async def traffic() -> None:
        """Each batch until it is taken, in order, as a lane does."""
        seq = 1
        while not resumed.is_set() or len(taken) < seq_after_restart + 10:
            try:
                await lanes.deliver(url, batch(delivery(seq)), timeout_s=2.0)
            except errors.NotNow:
                await asyncio.sleep(0.02)
                continue
            taken.append(seq)
            seq += 1

    seq_after_restart = 0
    sending = asyncio.create_task(traffic())
    async with asyncio.timeout(4 * WAIT_S):
        while len(taken) < 10:  # noqa: ASYNC110 - the other task's state
            await asyncio.sleep(0.01)
        await asyncio.to_thread(own_nats.kill)
        await asyncio.to_thread(own_nats.start)
        seq_after_restart = len(taken)
        resumed.set()
        await sending
    await lanes.close()
    await receiving.stop(1.0)
    assert taken == list(range(1, len(taken) + 1))
    assert set(taken) <= {one.seq for one in book.deliveries}


def _are(begun: list[int], expected: int) -> bool:
    return len(begun) >= expected


@pytest.mark.parametrize(
    ("setting", "most", "at_once"),
    [
        pytest.param("ANSWERING_MAX", 3, 3, id="by their number"),
        pytest.param("ANSWERING_BYTES", 1, 1, id="by their size"),
    ],
)
async def test_so_many_are_answered_at_a_time_and_begun_with_in_their_order(
    nats: Nats, monkeypatch: pytest.MonkeyPatch, setting: str, most: int, at_once: int
) -> None:
    monkeypatch.setattr(nats_delivery, setting, most)
    begun: list[int] = []
    goes_on = asyncio.Semaphore(0)

    async def slowly(found: Batch) -> DeliveryAnswer:
        begun.append(found.deliveries[0].seq)
        await goes_on.acquire()
        return Book()(found)

    receiving = listener(nats, slowly)
    url = await receiving.start()
    lanes = Transports("lanes-1", nats=nats.url)
    calls = [
        asyncio.create_task(lanes.deliver(url, batch(delivery(seq)), timeout_s=WAIT_S))
        for seq in range(1, 9)
    ]
    for answered in range(8):
        expected = min(8, at_once + answered)
        await until(partial(_are, begun, expected))
        assert begun == [*range(1, expected + 1)]
        goes_on.release()
        await asyncio.wait(calls[: answered + 1])
    await lanes.close()
    await receiving.stop(1.0)


async def test_while_the_server_is_away_nothing_waits_for_the_timeout(own_nats: Nats) -> None:
    receiving = listener(own_nats, Book())
    url = await receiving.start()
    lanes = Transports("lanes-1", nats=own_nats.url)
    await lanes.deliver(url, batch(delivery(1)), timeout_s=TIMEOUT_S)
    await asyncio.to_thread(own_nats.kill)
    async with asyncio.timeout(WAIT_S):
        for _ in range(3):
            with pytest.raises(errors.PeerUnreachable):
                await lanes.deliver(url, batch(delivery(2)), timeout_s=5.0)
    await lanes.close()
    await receiving.stop(1.0)


async def test_a_server_that_goes_in_the_same_moment_is_no_reason_to_fail(
    nats: Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Client.close

    async def lost(client: Client) -> None:
        await close(client)
        raise ConnectionResetError("Connection lost")

    receiving = listener(nats, Book())
    lanes = Transports("lanes-1", nats=nats.url)
    await lanes.deliver(await receiving.start(), batch(delivery(1)), timeout_s=TIMEOUT_S)
    monkeypatch.setattr(Client, "close", lost)
    await lanes.close()
    await receiving.stop(1.0)


async def test_no_server_at_all_is_said_with_its_address(own_nats: Nats) -> None:
    own_nats.stop()
    lanes = Transports("lanes-1", nats=own_nats.url)
    with pytest.raises(errors.PeerUnreachable, match=str(own_nats.port)):
        await lanes.deliver("nats://headgate.deliver.x", batch(delivery(1)), timeout_s=5.0)
    await lanes.close()
    with pytest.raises(errors.PeerUnreachable, match=str(own_nats.port)):
        await listener(own_nats, Book()).start()


async def test_an_event_that_nats_cannot_carry_is_rejected_and_the_others_arrive(
    nats: Nats,
) -> None:
    book = Book()
    receiving = listener(nats, book)
    url = await receiving.start()
    lanes = Transports("lanes-1", nats=nats.url)
    sent = batch(delivery(1), delivery(2, size_bytes=2_000_000), delivery(3))
    answer = await lanes.deliver(url, sent, timeout_s=TIMEOUT_S)
    assert answer.verdicts == ("accepted", "rejected", "retry"), "nothing passes it"
    answer = await lanes.deliver(url, batch(delivery(3)), timeout_s=TIMEOUT_S)
    assert answer.verdicts == ("accepted",)
    assert [one.seq for one in book.deliveries] == [1, 3]
    alone = batch(delivery(4, size_bytes=2_000_000))
    with pytest.raises(errors.TooLarge, match="max_payload"):
        await lanes.deliver(url, alone, timeout_s=TIMEOUT_S)
    await lanes.close()
    await receiving.stop(1.0)


async def test_an_event_that_just_fits_into_a_message_arrives(nats: Nats) -> None:
    """Though it wouldn't as lines, which have its id twice."""

    def of(size_bytes: int) -> DeliveryBatch:
        return batch(replace(delivery(1, size_bytes=size_bytes), event_id="e" * 200))

    sent = of(NATS_DEFAULT_MAX_PAYLOAD - len(encode_batch(of(0))))
    assert len(encode_batch(sent)) == NATS_DEFAULT_MAX_PAYLOAD < len(encode_lines(sent))
    book = Book()
    receiving = listener(nats, book)
    url = await receiving.start()
    lanes = Transports("lanes-1", nats=nats.url)
    answer = await lanes.deliver(url, sent, timeout_s=WAIT_S)
    await lanes.close()
    await receiving.stop(1.0)
    assert answer.verdicts == ("accepted",)
    assert len(book.deliveries) == 1


@pytest.mark.parametrize("user", ["me:hunter2", "hunter2"], ids=["password", "token"])
async def test_no_error_says_what_lets_one_in_at_a_server_that_is_away(user: str) -> None:
    servers = f"nats://{user}@127.0.0.1:{free_port('127.0.0.1')}"
    lanes = Transports("lanes-1", nats=servers)
    with pytest.raises(errors.PeerUnreachable, match=r"\*\*\*@127") as to_lanes:
        await lanes.deliver("nats://some.subject", batch(delivery(1)), timeout_s=TIMEOUT_S)
    await lanes.close()
    options = ListenerOptions(protocol="nats", nats=servers)
    receiving = NatsListener(options, GATEWAY, Book(), incarnation="1")
    with pytest.raises(errors.HeadgateError, match=r"\*\*\*@127") as to_gateway:
        await receiving.start()
    await receiving.stop(1.0)
    assert "hunter2" not in f"{to_lanes.value}{to_lanes.value.details}"
    assert "hunter2" not in f"{to_gateway.value}{to_gateway.value.details}"
