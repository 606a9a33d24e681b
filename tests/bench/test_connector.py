"""`bench connector`: its arithmetic, and its backlog in small, with a real MongoDB."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.bench.connector import main as connector
from headgate.bench.connector.main import DatabaseRounds, Round, Sizes, Steady, Vitals, result_of
from headgate.bench.registry import BENCHMARKS
from headgate.bench.result import Failed
from headgate.demo import mongodb, postgresql
from headgate.demo.mongodb import replica_set, why_missing
from headgate.demo.scoreboard import Scoreboard
from headgate.demo.summary import Summary, summarize
from headgate.demo.view import RoleView, View
from headgate.demo.watches import WATCHES

TINY = Sizes(changes=20_000, rounds=1, seconds=1.0, settled_s=0.0)


def test_it_is_registered() -> None:
    assert BENCHMARKS["connector"].name == "connector"


def a_summary() -> Summary:
    """Acknowledged after 2 ms, received after 6."""
    board = Scoreboard(len(WATCHES))
    board.sent("a", key="a", number=1, expected={0}, at_s=1.0)
    board.acknowledged("a", at_s=1.002)
    board.received(0, "a", partition=0, seq=1, at_s=1.006)
    return summarize(board, WATCHES, windows=0, seconds=1.0, seed=1)


def a_view(elapsed_s: float, produced: int, *, phase: str = "producing") -> View:
    return View(
        address="",
        phase=phase,
        elapsed_s=elapsed_s,
        total_s=None,
        produced=produced,
        produced_per_s=0.0,
        delivered=0,
        delivered_per_s=0.0,
        missing=0,
        lag=0,
        lag_ms=0,
        p50_ms=0.0,
        p99_ms=0.0,
        windows=0,
        window=0,
        roles=(RoleView("gateway", None), RoleView("ingest", os.getpid())),
    )


def test_a_ratio_compares_each_round_with_its_neighbour() -> None:
    vitals = Vitals(1.0)
    for elapsed_s, produced in ((0.5, 1), (1.5, 100), (9.0, 200)):
        vitals.see(a_view(elapsed_s, produced))
    vitals.see(a_view(10.0, 300, phase="draining"))
    rounds = [Round(50, 100, 20, 10), Round(80, 100, 30, 10), Round(30, 40, 25, 12)]
    rows = [Round(10, 40, 5, 1)]
    drains = {"mongodb": DatabaseRounds(rounds, rows), "postgresql": DatabaseRounds(rows, rounds)}
    steady = {"mongodb": Steady(a_summary(), vitals), "postgresql": Steady(a_summary(), vitals)}
    result = result_of(drains, steady, {"cores": 2})
    assert result.ratios == {
        "mongodb": 0.75,
        "snapshot_mongodb": 0.25,
        "postgresql": 0.25,
        "snapshot": 0.75,
    }
    assert result.figures["mongodb_events_per_s"] == 50
    assert result.figures["bare_mongodb_events_per_s"] == 100
    assert result.figures["mongodb_cpu_us_per_event"] == 25
    assert result.figures["postgresql_rows_per_s"] == 50
    for name in ("mongodb", "postgresql"):
        assert result.figures[f"{name}_p50_ms"] == pytest.approx(4, rel=0.05)
        assert result.figures[f"{name}_sent_p50_ms"] == pytest.approx(6, rel=0.05)
        assert result.figures[f"{name}_rss_mb_start"] > 0
    assert vitals.produced == [100, 200]


def test_without_a_look_at_the_ingest_node_there_are_no_figures() -> None:
    vitals = Vitals(1.0)
    vitals.see(a_view(2.0, 10))
    with pytest.raises(Failed, match="couldn't be watched"):
        vitals.figures()


async def test_without_mongodb_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mongodb, "PACKAGED", tmp_path / "mongod")
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(Failed, match="mongo-demo"):
        await connector.run(True, lambda _: None)


async def test_without_postgresql_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def started(_: Path) -> AsyncIterator[str]:
        yield "mongodb://nowhere"

    monkeypatch.setattr(connector, "replica_set", started)
    monkeypatch.setattr(postgresql, "PACKAGED", tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(Failed, match="postgres-demo"):
        await connector.run(True, lambda _: None)


@pytest.mark.skipif(why_missing() is not None, reason="no MongoDB here")
async def test_small_backlogs_and_tables_are_read_by_both(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(150),
        replica_set(tmp_path / "mongodb") as uri,
        postgresql.server() as dsn,
    ):
        found = await connector._drain(tmp_path, uri, dsn, TINY, lambda _: None)
    for drained in found.values():
        for [one] in (drained.changes, drained.rows):
            assert min(one.own_per_s, one.bare_per_s, one.own_cpu_us, one.bare_cpu_us) > 0
