"""Thousands of clients in one process: each a control stream that follows the topology.

A client says hello, acknowledges every topology that it is pushed, for one topic, and checks in as
often as it was told, as a producer's session does. Unlike producers they share a few connections,
because ten thousand of those would measure the kernel of one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import Any

import grpc
import msgspec

from headgate.adapters.control_stream import decode_from_coordinator, encode
from headgate.adapters.grpc.control import CHANNEL_OPTIONS, METHOD
from headgate.bench.rebalance.orders import serve_orders
from headgate.model.control.from_coordinator import PushTopology, Welcome
from headgate.model.control.to_coordinator import AckTopology, CheckIn, Hello
from headgate.tasks import Crew

STREAMS_PER_CHANNEL = 500
OPENING_AT_A_TIME = 100


class Connect(msgspec.Struct, tag=True):
    """Open this many streams; answered with `Done` when each has acknowledged a topology."""

    coordinator: str
    topic: str
    streams: int
    timeout_s: float


class Await(msgspec.Struct, tag=True):
    """Answered with `Done` when every stream has acknowledged `generation`."""

    generation: int
    timeout_s: float


class Done(msgspec.Struct):
    """`at_s` is on the machine's monotonic clock. Where `lost` says why a stream ended, or that
    `behind` of them have nothing acknowledged in time, it is no measurement."""

    at_s: float
    lost: str = ""
    behind: int = 0


class Crowd:
    """All streams of this process."""

    def __init__(self, order: Connect) -> None:
        self._order = order
        self._channels = [
            grpc.aio.insecure_channel(order.coordinator, options=CHANNEL_OPTIONS)
            for _ in range(-(-order.streams // STREAMS_PER_CHANNEL))
        ]
        self._room = asyncio.Semaphore(OPENING_AT_A_TIME)
        self._acknowledged = [0] * order.streams
        self._wanted = 0
        self._behind = 0
        self._all_have = asyncio.Event()
        self._lost = ""
        self._crew = Crew("bench")
        for number in range(order.streams):
            self._crew.start("client", self._follow(number), about=str(number))

    async def acknowledged(self, generation: int, timeout_s: float) -> Done:
        self._wanted = generation
        self._behind = sum(each < generation for each in self._acknowledged)
        if not self._lost:
            self._all_have.clear()
        if self._behind:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_have.wait()
        return Done(time.monotonic(), self._lost, self._behind)

    async def close(self) -> None:
        await self._crew.close()
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def _follow(self, number: int) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._converse(number, tasks)
        except* (grpc.aio.AioRpcError, asyncio.InvalidStateError) as errors:
            self._lose(repr(errors.exceptions[0]))
        else:
            self._lose("the coordinator ended the stream")

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._all_have.set()

    async def _converse(self, number: int, tasks: asyncio.TaskGroup) -> None:
        channel = self._channels[number // STREAMS_PER_CHANNEL]
        async with self._room:
            stream: Any = channel.stream_stream(METHOD)()
            client_id = f"client-{uuid.uuid4().hex[:12]}"
            hello = Hello(role="client", node_id=client_id, incarnation=client_id)
            await stream.write(encode(hello))
            welcome = decode_from_coordinator(await stream.read())
            assert isinstance(welcome, Welcome)
        writing = asyncio.Lock()
        checking_in = tasks.create_task(self._check_in(stream, writing, welcome.check_in_ms / 1000))
        while (data := await stream.read()) is not grpc.aio.EOF:
            message = decode_from_coordinator(data)
            if isinstance(message, PushTopology):
                generation = message.topology.generation
                async with writing:
                    await stream.write(encode(AckTopology(generation, (self._order.topic,))))
                self._note(number, generation)
        checking_in.cancel()

    def _note(self, number: int, generation: int) -> None:
        self._behind -= self._acknowledged[number] < self._wanted <= generation
        self._acknowledged[number] = generation
        if self._behind == 0:
            self._all_have.set()

    async def _check_in(self, stream: Any, writing: asyncio.Lock, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            async with writing:
                await stream.write(encode(CheckIn()))


async def run() -> None:
    crowds: list[Crowd] = []

    async def answer(order: Connect | Await) -> msgspec.Struct:
        match order:
            case Connect():
                crowds.append(Crowd(order))
                return await crowds[0].acknowledged(1, order.timeout_s)
            case Await(generation, timeout_s):
                return await crowds[0].acknowledged(generation, timeout_s)

    await serve_orders(Connect | Await, answer)
    for crowd in crowds:
        await crowd.close()


if __name__ == "__main__":
    asyncio.run(run())
