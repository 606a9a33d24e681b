"""A lane alone in a process, whose log has nothing but documents of a mebibyte: prints what became
of them, and how much memory that took beyond what the process began with.

    python -m tests.lane.large_documents slow|away

`slow`: the gateway takes its time for every batch. `away`: it isn't there, and the store of letters
takes a second for each call. Nobody here keeps a document but the lane.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Sequence

from headgate.errors import NotNow
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.model.event import PartitionRef, Record
from headgate.model.letters import NewLetter
from headgate.ports.letters import Fences
from headgate.ports.log import READ_BYTES, Extent, size_bytes
from headgate.ports.transport import Meanwhile
from tests.lane.world import FakeGateways, FaultyLetters, LaneWorld, everything, settle_down
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC, WrittenLog

MIB = 1024 * 1024
COUNT = 400


class LargeLog(WrittenLog):
    """Makes its documents up when they are read, as a store would bring them from its disk."""

    async def extent(self, ref: PartitionRef) -> Extent:
        return Extent(1, COUNT)

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        await asyncio.sleep(0)
        found: list[Record] = []
        for seq in range(after_seq + 1, min(after_seq + limit, COUNT) + 1):
            found.append(_record(seq))
            if sum(map(size_bytes, found)) >= READ_BYTES:
                break
        return found


def _record(seq: int) -> Record:
    document = b'{"seq":%d,"text":"%s"}' % (seq, b"x" * MIB)
    return Record(TOPIC, 0, seq, 1, f"e{seq}", "k", "", "insert", document, None, None, 0)


class ForgetfulGateways(FakeGateways):
    """Notes what comes, and keeps none of it."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self._mode = mode
        self.taken: list[int] = []
        self.largest_batch = 0

    def prepare(self, url: str, batch: DeliveryBatch) -> None:
        pass

    async def deliver(
        self,
        url: str,
        batch: DeliveryBatch,
        *,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        self.largest_batch = max(self.largest_batch, len(batch.deliveries))
        if self._mode == "away":
            raise NotNow("nobody is there")
        await asyncio.sleep(0.5)
        self.taken += [one.seq for one in batch.deliveries]
        return DeliveryAnswer(tuple("accepted" for _ in batch.deliveries), fill=0.0)


class ForgetfulLetters(FaultyLetters):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        await asyncio.sleep(1)
        self.written += [one.delivery.seq for one in letters]


async def _run(mode: str) -> dict[str, object]:
    world = LaneWorld(redrive_every_s=10_000.0)
    world.log = LargeLog()
    gateways = world.gateways = ForgetfulGateways(mode)
    letters = world.letters = ForgetfulLetters()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(600)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arrived = gateways.taken if mode == "slow" else letters.written
    return {
        "all": sorted(arrived) == list(range(1, COUNT + 1)),
        "in_order": arrived == sorted(arrived),
        "arrived": len(arrived),
        "largest_batch": gateways.largest_batch,
        "grown_mib": (peak_kib - before_kib) // 1024,
    }


if __name__ == "__main__":
    print(json.dumps(run_virtual(_run(sys.argv[1]))))  # noqa: T201  # for the test that started it
