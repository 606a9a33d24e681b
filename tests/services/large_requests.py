"""A role that takes produce requests, alone in a process that may have only so much memory.

    python -m tests.services.large_requests ingest
    python -m tests.services.large_requests gateway URL

Prints its address. `ingest`: its disk writes nothing before a line comes. `gateway` passes on to
what stands at URL. After another line it prints how much memory it took beyond what it began with,
and ends.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.http.server import HttpServer
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.origin import no_origin
from headgate.answering import HttpApp
from headgate.decide.produce.placing import PlacingRules
from headgate.decide.produce.room import Room
from headgate.model.control.to_coordinator import AckTopology
from headgate.model.event import Event, PartitionRef
from headgate.model.http import Route
from headgate.model.topology import Topic
from headgate.ports.log import Appended
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.gateway.public.producing import Producing
from headgate.services.ingest.node import Ingest, IngestOptions
from headgate.services.ingest.produce.appends import WriteBounds
from headgate.services.ingest.produce.writing import WritingOptions
from tests.services.ingest.doubles import ScriptedCoordinator, nothing_settled, topology

MIB = 1024 * 1024
ROOM_BYTES = 64 * MIB
MORE_BYTES = 480 * MIB
"""That may be mapped beyond what the process began with: malloc fails beyond it. Well above what
may be taken, which whoever started it judges: what is mapped is also stacks of threads and what the
allocators of three libraries set aside, a hundred mebibytes more or less from run to run. Where
malloc fails, a library ends a thread of its own, and the gateway with it."""


class StalledLog(MemoryLogWriter):
    """Keeps no document."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.written: set[str] = set()

    async def append(
        self, ref: PartitionRef, events: Sequence[Event], *, version: int, now_ms: int
    ) -> list[Appended]:
        await self.goes_on.wait()
        self.written |= {event.event_id for event in events}
        return [Appended(len(self.written)) for _ in events]


def _memory_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


async def _line() -> None:
    await asyncio.to_thread(sys.stdin.readline)


async def _ingest() -> None:
    writer, coordinator = StalledLog(), ScriptedCoordinator()
    writing = WritingOptions(
        bounds=WriteBounds(bytes=ROOM_BYTES), placing=PlacingRules(write_timeout_s=100.0)
    )
    node = Ingest(
        IngestOptions("ingest-1", "start", writing=writing),
        writer=writer,
        reader=MemoryLogReader(writer.stored),
        open_session=coordinator.open,
        settled=nothing_settled,
        http=Http1Server(),
        calls=PooledCalls(),
        open_origin=no_origin,
        machine=ScriptedMachine(),
    )
    url = await node.start()
    coordinator.push(topology(1, Topic("flights", 4)))
    await coordinator.heard(AckTopology(1))
    before_bytes = _limited(url)
    await _line()
    writer.goes_on.set()
    await _line()
    _report(before_bytes, len(writer.written))
    await node.stop()


async def _gateway(node_url: str) -> None:
    room = Room(ROOM_BYTES, setting="gateway.waiting_memory")
    producing = Producing(
        Forwarder(PooledCalls(), body_limit_bytes=16 * MIB, room=room),
        ingest_urls=lambda _topic, _body: [node_url],
        knows=lambda _topic: True,
    )
    server = HttpServer()
    routes = [Route("POST", "/v1/topics/{name}/produce", producing.produce)]
    port = await server.start(HttpApp(routes), "127.0.0.1", 0)
    before_bytes = _limited(f"http://127.0.0.1:{port}")
    await _line()
    await _line()
    _report(before_bytes, 0)
    await server.stop(1.0)


def _limited(url: str) -> int:
    before_bytes = _memory_bytes("VmRSS")
    most = _memory_bytes("VmData") + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    print(url, flush=True)  # noqa: T201  # for the test that started it
    return before_bytes


def _report(before_bytes: int, written: int) -> None:
    grown = (_memory_bytes("VmHWM") - before_bytes) // MIB
    print(json.dumps({"grown_mib": grown, "written": written}), flush=True)  # noqa: T201  # likewise


if __name__ == "__main__":
    asyncio.run(_ingest() if sys.argv[1] == "ingest" else _gateway(sys.argv[2]))
