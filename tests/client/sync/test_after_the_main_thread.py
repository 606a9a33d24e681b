"""A program whose main thread has ended goes on in its other threads, and so do their clients."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.client.served_gateway import served_gateway

WAIT_S = 30.0
PROGRAM = """
import sys, threading
from headgate.client import SyncConsumer, SyncSubscriber

url, kind = sys.argv[1:]

def work():
    threading.main_thread().join()
    options = {"start": "earliest", "retry_first_s": 0.01}
    if kind == "subscriber":
        client = SyncSubscriber(url, "a", **options)
    else:
        client = SyncConsumer(url, "a", "g", **options)
    with client:
        print(client.next(10).seq, flush=True)
        print(client.next(10).seq, flush=True)
        print(client.reconnects, flush=True)

threading.Thread(target=work).start()
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("kind", ["subscriber", "consumer"])
async def test_clients_connect_and_connect_again_when_the_main_thread_has_ended(
    kind: str, host: str
) -> None:
    async with served_gateway() as gateway:
        gateway.ws_url = gateway.ws_url.replace("127.0.0.1", host)
        gateway.append("a", 1)
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, gateway.url, kind), stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        try:
            async with asyncio.timeout(WAIT_S):
                assert await program.stdout.readline() == b"1\n"
                gateway.drop_all()
                gateway.append("a", 1)
                assert (await program.stdout.read()).split()[-1:] == [b"1"], "it reconnects"
                assert await program.wait() == 0
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
