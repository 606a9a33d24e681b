"""A connector that begins anew at a real server, and looks through the log for what is gone."""

from __future__ import annotations

import asyncio

from tests.adapters.pgoutput.conftest import Database
from tests.adapters.pgoutput.test_network_and_moves import PostgresStage
from tests.adapters.pgoutput.workload import set_up
from tests.services.ingest.connectors.intake_stage import ONE, TWO


async def test_what_was_said_is_never_gone_and_what_was_deleted_is(database: Database) -> None:
    """A message is of no table, so no rows of it are read."""
    await set_up(database.dsn)
    stage = PostgresStage(database.dsn, messages="said")
    async with asyncio.timeout(60):
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        await database.run("INSERT INTO orders VALUES ('stays', 1), ('goes', 2)")
        await database.run("SELECT pg_logical_emit_message(true, 'app', 'hello')")
        await stage.until(lambda: len(stage.records()) == 3)
        await stage.publish()
        stage.connector_at = ""
        await stage.publish()
        await database.run("DELETE FROM orders WHERE id = 'goes'")
        stage.connector_at = ONE
        stage.reset_connector("now", snapshot=True)
        await stage.publish()
        await stage.until_taken()
        await stage.stop()
    deleted = [(one.collection, one.key) for one in stage.records() if one.op == "delete"]
    assert deleted == [("public.orders", "goes")]
