"""A consumer of a group as a program of its own: prints what it processes, until it is stopped.

Every line is a time that all processes of a machine share, the key and the number, then partition,
seq, target and epoch. SIGTERM makes it leave the group; whoever kills it gets what it had printed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

from headgate.client import Consumer, Event


async def main(url: str, topic: str, name: str, pause_s: float, start: str = "now") -> None:
    async with Consumer(
        url, topic, "radar", consumer=name, keys_expected=1_200, start=start
    ) as consumer:
        loop = asyncio.get_running_loop()
        leaving: set[asyncio.Task[None]] = set()

        def leave() -> None:
            leaving.add(asyncio.create_task(consumer.close()))

        loop.add_signal_handler(signal.SIGTERM, leave)
        sys.stderr.write("joined\n")
        sys.stderr.flush()
        async for message in consumer:
            assert isinstance(message, Event)
            what = f"{time.monotonic_ns()} {message.key} {message.document['n']}"
            where = f"{message.partition} {message.seq} {message.target} {message.epoch}"
            sys.stdout.write(f"{what} {where}\n")
            sys.stdout.flush()
            await asyncio.sleep(pause_s)
        await asyncio.gather(*leaving)


if __name__ == "__main__":
    _, url, topic, name, pause_s, *start = sys.argv
    asyncio.run(main(url, topic, name, float(pause_s), *start))
