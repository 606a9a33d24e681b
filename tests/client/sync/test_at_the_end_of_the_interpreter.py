"""A program that ends while it has blocking clients: what is left of them is closed when Python
takes its objects down, and no other thread runs any more then."""

from __future__ import annotations

import asyncio
import sys

from tests.client.served_gateway import served_gateway

WAIT_S = 30.0
PROGRAM = """
import sys
from headgate.client import SyncConsumer, SyncProducer, SyncSubscriber
from headgate.errors import HeadgateError

url = sys.argv[1]

def messages():
    with SyncConsumer(url, "a", "g", consumer="c", start="earliest") as consumer:
        yield from consumer

class Holder:
    def __init__(self):
        self.subscriber = SyncSubscriber(url, "a", start="earliest").__enter__()
        self.producer = SyncProducer(url)

    def __del__(self):
        print("positions", self.subscriber.positions)
        for call in (self.subscriber.next, lambda: self.producer.send("a", {})):
            try:
                call()
            except HeadgateError as error:
                print(error)
        self.subscriber.close()
        self.producer.close()

held, first = Holder(), messages()
print(next(first).seq, held.subscriber.next().seq)
"""


async def test_neither_a_generator_nor_a_finalizer_that_closes_one_then_hangs() -> None:
    async with served_gateway() as gateway:
        gateway.append("a", 2)
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, gateway.url), stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(WAIT_S):
                said, _ = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        assert program.returncode == 0
        counts, positions, *refused = said.decode().splitlines()
        assert (counts, positions) == ("1 1", "positions {0: 1}")
        assert len(refused) == 2
        assert all("the program is ending" in error for error in refused)


HANGING = """
import threading
from headgate.client import SyncProducer, SyncSubscriber
from headgate.errors import HeadgateError

url = "http://127.0.0.1:1"
began = threading.Event()

def ask():
    began.set()
    threading.Event().wait()

try:
    with SyncSubscriber(url, "a", token=ask, open_timeout_s=0.1):
        pass
except HeadgateError as error:
    print(began.is_set(), error)
left_open = SyncProducer(url, token=ask)
threading.Thread(target=left_open.send, args=("a", {}), daemon=True).start()
"""


async def test_a_function_for_tokens_that_never_returns_keeps_no_program() -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HANGING), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(WAIT_S):
            said, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode == 0
    assert said.decode().startswith("True no gateway answered within 0.1 s")
