"""Which endpoint a connection uses, and when it leaves it for the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import aetcd
import grpc
import pytest

from headgate.adapters.etcd.connection import EtcdConnection, parse_endpoints
from headgate.errors import InvalidConfig, StorageFailed
from tests.virtual_time import run_virtual


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("one:2379", ["one:2379"]),
        ("10.0.0.1:1,10.0.0.2:2", ["10.0.0.1:1", "10.0.0.2:2"]),
        (" one:1 , two:2, ", ["one:1", "two:2"]),
        ("http://one:1/,[::1]:2", ["one:1", "[::1]:2"]),
    ],
)
def test_endpoints_are_addresses_with_commas_in_between(text: str, endpoints: list[str]) -> None:
    assert [str(endpoint) for endpoint in parse_endpoints(text)] == endpoints


@pytest.mark.parametrize(
    "text",
    ["", " , ", "one", "one:", ":1", "one:port", "one:1 two:2", "one:70000", "https://one:1"],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"etcd\.endpoints must be"):
        parse_endpoints(text)


class Work:
    """Plays etcd: fails with the given codes, one per attempt, then succeeds."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self._codes = list(codes)
        self.asked: list[str] = []

    async def __call__(self, client: Any) -> str:
        self.asked.append(f"{client._host}:{client._port}")
        if not self._codes:
            return "done"
        nothing = grpc.aio.Metadata()
        error = grpc.aio.AioRpcError(self._codes.pop(0), nothing, nothing, details="so it is")
        raise aetcd.ClientError("so it is") from error


LOST = grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("codes", "asked"),
    [
        ([], ["a:1"]),
        ([LOST], ["a:1", "b:2"]),
        ([LOST, grpc.StatusCode.DEADLINE_EXCEEDED], ["a:1", "b:2", "a:1"]),
        ([grpc.StatusCode.UNAUTHENTICATED], ["a:1", "b:2"]),
    ],
    ids=["none", "one", "all", "token"],
)
def test_after_a_loss_the_next_endpoint_is_asked(
    codes: list[grpc.StatusCode], asked: list[str]
) -> None:
    async def run() -> None:
        connection, work, again = EtcdConnection("a:1,b:2"), Work(*codes), Work()
        assert await connection.run(work, what="asking") == "done"
        assert work.asked == asked
        await connection.run(again, what="asking")
        assert again.asked == asked[-1:], "what answers is kept"
        await connection.close()

    run_virtual(run())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (grpc.StatusCode.INTERNAL, "asking failed: etcd reports an error (so it is); check"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "asking failed: etcd reports an error (so it is)"),
    ],
)
def test_what_another_endpoint_would_not_better_is_said_at_once(
    code: grpc.StatusCode, message: str
) -> None:
    async def run() -> None:
        connection, work = EtcdConnection("a:1,b:2"), Work(code)
        with pytest.raises(StorageFailed) as said:
            await connection.run(work, what="asking")
        assert str(said.value).startswith(message)
        assert len(work.asked) == 1
        await connection.close()

    run_virtual(run())


def test_a_call_ends_by_its_deadline_whatever_the_members_do() -> None:
    async def run() -> None:
        clock = asyncio.get_running_loop().time
        silent = EtcdConnection("a:1,b:2", timeout_s=5.0, attempt_timeout_s=1.5)
        with pytest.raises(StorageFailed, match="no answer in time"):
            await silent.run(lambda _: asyncio.sleep(3_600), what="asking")
        assert 4.5 <= clock() <= 5.0
        await silent.close()

    run_virtual(run())


def test_a_client_in_use_stays_open_until_its_last_user_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[aetcd.Client] = []

    async def close(client: aetcd.Client) -> None:
        closed.append(client)

    monkeypatch.setattr(aetcd.Client, "close", close)

    async def run() -> None:
        connection = EtcdConnection("a:1,b:2")
        async with connection.client() as watching:
            await connection.run(Work(LOST), what="asking")
            async with connection.client() as present:
                assert present is not watching
            assert not closed
        assert closed == [watching]
        await connection.close()
        assert closed == [watching, present]

    run_virtual(run())


@pytest.mark.parametrize("prefix", ["/headgate", "/headgate/"])
def test_keys_lie_under_the_prefix(prefix: str) -> None:
    connection = EtcdConnection("a:1", prefix=prefix)
    assert connection.key("checkpoints", "flights", 0) == b"/headgate/checkpoints/flights/0"
    assert connection.key("checkpoints", "") == b"/headgate/checkpoints/"
