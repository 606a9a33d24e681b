"""Whether the servers that a configuration names can be reached from here, for those who ask why
something doesn't start. Nothing is changed there, and every look ends within a few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.errors import UNREACHABLE

if TYPE_CHECKING:
    from headgate.config import Config

CONNECT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Absent:
    """A server that is needed and doesn't answer; `advice` says what to look at."""

    subject: str
    what: str
    advice: str


async def absent_servers(config: Config) -> list[Absent]:
    """Those of etcd and PostgreSQL that `config` needs and that can't be reached."""
    looks = [_etcd(config), _postgres(config)]
    return [absent for absent in await asyncio.gather(*looks) if absent is not None]


async def listens(address: str) -> bool:
    """Whether connections are taken at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
        return True
    except (OSError, TimeoutError):
        return False


async def _etcd(config: Config) -> Absent | None:
    if "etcd" not in (config.coordinator.store, config.reliability.checkpoint.backend):
        return None
    found = await asyncio.gather(*(listens(one) for one in _addresses(config.etcd.endpoints)))
    if any(found):
        return None
    what = f"etcd {UNREACHABLE} (nobody listens at {config.etcd.endpoints})"
    return Absent("etcd", what, "check etcd.endpoints and the servers")


def _addresses(endpoints: str) -> Iterator[str]:
    return (part.strip() for part in endpoints.split(",") if part.strip())


async def _postgres(config: Config) -> Absent | None:
    if config.log.backend != "postgresql":
        return None
    try:
        import psycopg

        from headgate.adapters.postgres.connections import connect
        from headgate.adapters.postgres.errors import reason_of
    except ImportError:
        return None  # Opening the log says so.
    try:
        connection = await connect(config.log.dsn, CONNECT_TIMEOUT_S)
    except psycopg.Error as error:
        what, _, advice = reason_of(error).rpartition("; ")
        return Absent("log", what, advice)
    await connection.close()
    return None
