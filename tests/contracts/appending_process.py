"""A process that appends until it's killed; prints what was acknowledged, one id and seq per line.

`python -m tests.contracts.appending_process ADAPTER LOCATION ROUND`
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from headgate.model.event import Event, PartitionRef
from tests.contracts.stores import WRITERS

REF = PartitionRef("killed", 0)
CALLERS = 8
REQUEST_EVENTS = 5


async def main(adapter: str, location: str, round_number: int) -> None:
    writer = WRITERS[adapter](location)
    await writer.open(REF, epoch=round_number)
    numbers = count()

    async def caller() -> None:
        while True:
            name = f"{round_number}-{next(numbers)}"
            events = [Event(f"{name}-{part}", b"{}") for part in range(REQUEST_EVENTS)]
            answers = await writer.append(REF, events, version=1, now_ms=1)
            lines = [f"{e.event_id} {a.seq}\n" for e, a in zip(events, answers, strict=True)]
            sys.stdout.write("".join(lines))
            sys.stdout.flush()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
