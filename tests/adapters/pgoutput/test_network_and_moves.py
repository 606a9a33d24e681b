"""A connector whose server or network goes away under load, while it moves and its topic is
repartitioned: with a real server, a real reader and a log in memory, judged by the database's own
ledger."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.adapters.pgoutput import link
from headgate.adapters.pgoutput.origin import PostgresOrigin
from headgate.model.connector import Connector, ConnectorRoute
from tests.adapters.pgoutput.conftest import Database
from tests.adapters.pgoutput.reading import NAME, no_secrets
from tests.adapters.pgoutput.workload import TABLE, committed, judge, set_up, shop
from tests.servers.cut import CutNetwork
from tests.servers.postgres import Postgres
from tests.services.ingest.connectors.intake_stage import ONE, ORDERS, TWO, Stage

SOON_S = 0.5


class PostgresStage(Stage):
    """Its connector reads a real database."""

    def __init__(self, dsn: str, **settings: str) -> None:
        super().__init__()
        self._settings = {"dsn": dsn, "tables": TABLE, **settings}
        routes = (ConnectorRoute("*", ORDERS.name),)
        self.connector = Connector(NAME, "postgresql", routes, self._settings, beginning=1)

    def _open_origin(self, _connector: Connector) -> Any:
        self.opened += 1
        return PostgresOrigin(self._settings, name=NAME, resolve=no_secrets)

    def counts(self) -> dict[int, int]:
        counts = {self.topic.version: self.topic.partitions}
        return counts | {one.version: len(one.last) for one in self.topic.former}

    async def goes_on(self, records: int) -> None:
        wanted = len(self.records()) + records
        await self.until(lambda: len(self.records()) >= wanted, timeout_s=60.0)

    async def until_all(self, dsn: str) -> None:
        wanted = sum(map(len, (await committed(dsn)).values()))
        await self.until(lambda: len(self.records()) >= wanted, timeout_s=60.0)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE_S", 4 * SOON_S)
    monkeypatch.setattr(link, "STATUS_S", SOON_S)


@pytest.mark.usefixtures("_impatient")
async def test_nothing_is_lost_or_repeated_when_the_network_is_cut(database: Database) -> None:
    await set_up(database.dsn)
    over = asyncio.Event()
    async with (
        asyncio.timeout(120),
        CutNetwork(database.server.port) as network,
        asyncio.TaskGroup() as group,
    ):
        stage = PostgresStage(database.dsn.replace(str(database.server.port), str(network.port)))
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        shopping = group.create_task(shop(database.dsn, over.is_set))
        for cut in (network.refuse, network.break_off, network.swallow):
            await stage.goes_on(50)
            cut()
            await stage.until_state("retrying")
            if cut == network.swallow:
                await stage.repartition(6)
                stage.move_connector(TWO)
                await stage.publish()
            network.mend()
            await stage.until_state("running")
        await stage.goes_on(50)
        over.set()
        await shopping
        await stage.until_all(database.dsn)
        await stage.stop()
        assert network.lost > 1, "something was lost on its way"
        await judge(database.dsn, stage.records(), stage.counts())


async def test_nothing_is_lost_or_repeated_when_the_server_is_killed() -> None:
    over = asyncio.Event()
    with Postgres() as server:
        await set_up(server.dsn)
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            stage = PostgresStage(server.dsn)
            await stage.start(ONE, TWO)
            await stage.publish()
            await stage.until_state("running")
            shopping = group.create_task(shop(server.dsn, over.is_set))
            for to in (TWO, ONE):
                await stage.goes_on(50)
                await asyncio.to_thread(server.kill)
                await stage.until_state("retrying")
                stage.move_connector(to)
                await stage.publish()
                await asyncio.to_thread(server.restart)
                await stage.until_state("running")
            await stage.goes_on(50)
            over.set()
            await shopping
            await stage.until_all(server.dsn)
            await stage.stop()
            await judge(server.dsn, stage.records(), stage.counts())


@pytest.mark.usefixtures("_impatient")
async def test_idle_tables_beside_busy_ones_hold_nothing_back(database: Database) -> None:
    """The slot moves on with what others write, once all partitions stand there."""
    await set_up(database.dsn)
    await database.run("CREATE TABLE busy (body text)")
    stage = PostgresStage(database.dsn)
    async with asyncio.timeout(60):
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        await database.run(
            "INSERT INTO busy SELECT repeat('x', 500) FROM generate_series(1, 40000)"
        )
        [(end,)] = await database.run("SELECT pg_current_wal_lsn()::text")
        while True:
            [(is_past, held)] = await database.run(
                "SELECT confirmed_flush_lsn >= %s::pg_lsn, "
                "pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) "
                "FROM pg_replication_slots WHERE slot_name = %s",
                (end, f"headgate_{NAME}"),
            )
            if is_past and held < 8_000_000:
                break
            await database.run("INSERT INTO busy VALUES ('x')")
            await asyncio.sleep(0.1)
        assert stage.records() == []
        await stage.stop()
