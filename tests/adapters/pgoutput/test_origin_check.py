"""What a check finds, with real users and rights; and that no secret is ever shown."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headgate.adapters.pgoutput.origin import PostgresOrigin
from headgate.adapters.pgoutput.slot import SlotInfo
from headgate.adapters.pgoutput.standing import warning_of
from headgate.errors import InvalidConfig, OriginRefused, OriginUnavailable
from headgate.model.connector import BEGIN_NOW
from headgate.ports.origin import Finding, Standing
from tests.adapters.pgoutput.conftest import Database
from tests.adapters.pgoutput.reading import NAME, an_origin, events
from tests.servers.postgres import Postgres
from tests.servers.process import free_port

PASSWORD = "p@ss/w:rd%? 'x\\y"
"""What an address can't hold as it is."""
MIB = 1024**2


@pytest.fixture(scope="module")
def guarded() -> Iterator[Postgres]:
    """Without logical replication, and with users that need a password."""
    with Postgres(wal_level="replica") as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(
                psycopg.sql.SQL("CREATE ROLE reader LOGIN REPLICATION PASSWORD {}").format(
                    psycopg.sql.Literal(PASSWORD)
                )
            )
            hba = server.data / "pg_hba.conf"
            hba.write_text(f"host all reader 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
            connection.execute("SELECT pg_reload_conf()")
        yield server


async def found(dsn: str, **settings: str) -> dict[str, Finding]:
    async with an_origin(dsn, **settings) as origin:
        return {one.what: one for one in await origin.check()}


async def test_all_is_well_and_nothing_is_changed(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("ALTER TABLE t REPLICA IDENTITY FULL")
    findings = await found(database.dsn, tables="public.t")
    assert {one.verdict for what, one in findings.items() if what != "slot"} == {"ok"}
    assert "max_slot_wal_keep_size" in findings["slot"].sentence
    assert findings["publication"].sentence == "1 table"
    assert await database.run("SELECT 1 FROM pg_publication") == []
    assert await database.run("SELECT 1 FROM pg_replication_slots WHERE database = 'x'") == []


async def test_tables_without_a_key_and_with_half_an_identity_are_named(database: Database) -> None:
    await database.run("CREATE TABLE whole (id int PRIMARY KEY)")
    assert (await found(database.dsn))["identity"].verdict == "warning"
    await database.run("CREATE TABLE keyless (n int)")
    await database.run("CREATE TABLE wide (n int)")
    await database.run("ALTER TABLE wide REPLICA IDENTITY FULL")
    await database.run("CREATE TABLE by_index (n int NOT NULL UNIQUE)")
    await database.run("ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_n_key")
    keys = (await found(database.dsn))["keys"]
    assert keys.verdict == "failed"
    assert keys.sentence.startswith("public.keyless, public.wide have no key")
    assert (await found(database.dsn, tables="public.whole,public.by_index"))[
        "keys"
    ].verdict == "ok"


async def test_a_key_that_the_server_would_not_take_for_one_is_found_before_it_is_published(
    database: Database,
) -> None:
    """Nobody could update or delete rows of it from then on."""
    await database.run("CREATE TABLE late (id int PRIMARY KEY DEFERRABLE)")
    keys = (await found(database.dsn))["keys"]
    assert (keys.verdict, "DEFERRABLE" in keys.sentence) == ("failed", True)
    await database.run("ALTER TABLE late REPLICA IDENTITY FULL")
    assert (await found(database.dsn))["keys"].verdict == "ok"


async def test_tables_that_inherit_and_partitions_are_what_the_settings_name(
    database: Database,
) -> None:
    await database.run("CREATE TABLE parent (id int PRIMARY KEY)")
    await database.run("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)")
    await database.run("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    await database.run("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    alone = await found(database.dsn, tables="public.parent,public.p1")
    assert alone["publication"].sentence == "2 tables"
    assert "public.child inherit" in alone["tables"].sentence
    whole = await found(database.dsn)
    assert whole["publication"].sentence == "3 tables"
    assert "tables" not in whole


async def test_what_a_publication_leaves_out_is_named_and_its_own_mended_by_a_reset(
    database: Database,
) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("CREATE PUBLICATION given FOR TABLE t WITH (publish = 'insert, update')")
    finding = (await found(database.dsn, publication="given"))["publication"]
    assert (finding.verdict, "every delete and truncate" in finding.sentence) == ("warning", True)
    async with an_origin(database.dsn) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            position = stream.position
        await database.run("ALTER PUBLICATION headgate_shop SET (publish = 'insert')")
        assert "every update and delete" in (await origin.standing(position)).warning
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            assert (await origin.standing(position)).warning == ""
            await database.run("INSERT INTO t VALUES (1)")
            await database.run("DELETE FROM t")
            assert [one.op for one in await events(stream, 2)] == ["insert", "delete"]


async def test_what_the_settings_name_has_to_be_there(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    missing = await found(database.dsn, tables="public.t,public.gone")
    assert "no table public.gone" in missing["publication"].sentence
    given = await found(database.dsn, publication="p", slot="s")
    assert {given["publication"].verdict, given["slot"].verdict} == {"failed"}
    async with an_origin(database.dsn, publication="p", slot="s") as origin:
        with pytest.raises(OriginRefused, match="no publication p"):
            async with origin.open("", begin_at=BEGIN_NOW):
                pass
    with pytest.raises(OriginRefused, match="gone"):
        async with (
            an_origin(database.dsn, tables="public.gone") as origin,
            origin.open("", begin_at=BEGIN_NOW),
        ):
            pass


async def test_a_user_without_rights_is_told_which(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("DROP ROLE IF EXISTS nobody_special")
    await database.run("CREATE ROLE nobody_special LOGIN")
    dsn = database.dsn.replace("user=postgres", "user=nobody_special")
    try:
        findings = await found(dsn, tables="public.t")
        assert "ALTER ROLE nobody_special REPLICATION" in findings["rights"].sentence
        assert "owner" in findings["publication"].sentence
        assert "GRANT SELECT ON public.t" in findings["snapshot"].sentence
        assert "only a superuser" in (await found(dsn))["publication"].sentence
        async with an_origin(dsn, tables="public.t") as origin:
            with pytest.raises(OriginRefused, match="REPLICATION"):
                async with origin.open("", begin_at=BEGIN_NOW):
                    pass
    finally:
        await database.run("DROP ROLE nobody_special")


def as_reader(server: Postgres, dsn: str, password: str) -> PostgresOrigin:
    def resolve(reference: str) -> str:
        if reference != "SECRET":
            raise InvalidConfig(f"the environment of this process has no {reference}")
        return password

    address = dsn.format(port=server.port)
    return PostgresOrigin({"dsn": address}, name=NAME, resolve=resolve)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://reader:${{SECRET}}@127.0.0.1:{port}/postgres",
        "host=127.0.0.1 port={port} user=reader password=${{SECRET}} dbname=postgres",
    ],
)
async def test_a_secret_is_taken_as_it_is_and_never_shown(guarded: Postgres, dsn: str) -> None:
    well = as_reader(guarded, dsn, PASSWORD)
    findings = {one.what: one for one in await well.check()}
    assert findings["connection"].verdict == "ok"
    assert "wal_level = logical" in findings["wal_level"].sentence
    with pytest.raises(OriginRefused, match="wal_level = logical"):
        async with well.open("", begin_at=BEGIN_NOW):
            pass
    await well.close()
    wrong = as_reader(guarded, dsn, "hunter2")
    [refused] = await wrong.check()
    assert (refused.what, refused.verdict) == ("connection", "failed")
    assert "user" in refused.sentence
    await wrong.close()
    shown = f"{findings}{refused}{wrong!r}{wrong._database!r}"
    assert PASSWORD not in shown
    assert "hunter2" not in shown


async def test_a_secret_that_is_missing_is_named(guarded: Postgres) -> None:
    origin = as_reader(guarded, "postgresql://reader:${{OTHER}}@127.0.0.1:{port}/postgres", "x")
    [finding] = await origin.check()
    assert "has no OTHER" in finding.sentence


async def test_a_server_that_is_away_is_said_within_a_bound() -> None:
    async with an_origin(f"host=127.0.0.1 port={free_port()} user=postgres") as origin:
        [finding] = await origin.check()
        assert (finding.verdict, "can't be reached" in finding.sentence) == ("failed", True)
        with pytest.raises(OriginUnavailable, match="can't be reached"):
            async with origin.open("", begin_at=BEGIN_NOW):
                pass
        assert await origin.standing("") == Standing()


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (SlotInfo("s", "pgoutput", "d", 0, "reserved", held_bytes=5 * MIB), ""),
        (SlotInfo("s", "pgoutput", "d", 0, "lost"), "given up"),
        (SlotInfo("s", "pgoutput", "d", 0, "reserved", "wal_removed"), "given up"),
        (SlotInfo("s", "pgoutput", "d", 0, "unreserved", held_bytes=9 * MIB), "about to give up"),
        (
            SlotInfo("s", "pgoutput", "d", 0, "reserved", held_bytes=9 * MIB, safe_bytes=10 * MIB),
            "",
        ),
        (
            SlotInfo("s", "pgoutput", "d", 0, "extended", held_bytes=9 * MIB, safe_bytes=5 * MIB),
            "after 5 MiB more",
        ),
        (
            SlotInfo("s", "pgoutput", "d", 0, "extended", held_bytes=20_000 * MIB),
            "holds back 19.5 GiB",
        ),
    ],
)
def test_a_slot_that_will_be_lost_is_said_before_it_is(info: SlotInfo, words: str) -> None:
    warning = warning_of(info)
    assert words in warning
    assert bool(warning) == bool(words)
    assert not warning or "; " in warning, "what to do stands behind a semicolon"
