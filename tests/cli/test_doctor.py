"""`headgate doctor`: advice is no failure, what is wrong is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.errors import PeerUnreachable
from headgate.model.api import LaneStatus
from tests.cli.command import headgate
from tests.cli.operated import OperatedServer, partition, status, topic

READ = LaneStatus("r-1", 0, 1, 0, 7, ["flights:0"], 1, 1, 1, 0, 1)


def said(findings: object) -> dict[str, dict[str, str]]:
    found: list[dict[str, str]] = cast("dict[str, Any]", findings)["findings"]
    return {finding["subject"]: finding for finding in found}


async def test_advice_alone_ends_with_code_0(operated: OperatedServer, tmp_path: Path) -> None:
    operated.now = status(topic("flights", partition(0, rate=6_000.0)), lanes=[READ])
    result = await headgate("doctor", "--data", str(tmp_path), "--json", url=operated.url)
    assert result.code == 0, result.out
    found = said(result.json)
    assert {"python", "java", "data", "ingest", "router", "topic flights"} <= set(found)
    assert found["topic flights"]["verdict"] == "advice"
    assert "--partitions 4" in found["topic flights"]["advice"]


@pytest.mark.parametrize("missing", ["owner", "router"])
async def test_something_wrong_ends_with_code_1_and_a_sentence(
    operated: OperatedServer, tmp_path: Path, missing: str
) -> None:
    broken = partition(0, **{missing: None})
    operated.now = status(topic("flights", broken), lanes=[READ])
    result = await headgate("doctor", "--data", str(tmp_path), url=operated.url)
    assert result.code == 1
    [line] = [line for line in result.out.splitlines() if "topic flights" in line]
    assert line.startswith("bad")
    assert "flights:0; start " in line


async def test_a_coordinator_that_is_away_is_missed_by_name(
    operated: OperatedServer, tmp_path: Path
) -> None:
    """The gateway answers: something does run, and events flow."""
    operated.then = [PeerUnreachable("nothing answers at http://coordinator at the moment")]
    result = await headgate("doctor", "--data", str(tmp_path), "--json", url=operated.url)
    assert result.code == 1
    found = said(result.json)
    assert "system" not in found
    assert found["coordinator"]["what"] == "nothing answers at http://coordinator at the moment"
    assert "`headgate coordinator`" in found["coordinator"]["advice"]
    assert "/health" in found["coordinator"]["advice"]


async def test_a_coordinator_that_is_started_again_is_waited_for(
    operated: OperatedServer, tmp_path: Path
) -> None:
    folder = DataFolder.open(tmp_path / "data")
    operated.then = [PeerUnreachable("nothing answers at http://coordinator at the moment")]
    with folder.lock():
        result = await headgate("doctor", "--data", str(folder.root), "--json", url=operated.url)
    assert result.code == 0, result.out
    found = said(result.json)["coordinator"]
    assert found["verdict"] == "warn"
    assert found["advice"].startswith("`headgate up` runs: wait a little")
    assert "`headgate coordinator`" not in found["advice"]


async def test_a_machine_on_which_nothing_runs_is_told_what_to_run(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    result = await headgate("doctor", "--data", str(tmp_path), url=url)
    assert result.code == 0
    assert f"nothing answers at {url}; run `headgate up`" in result.out


async def test_who_has_the_data_and_doesnt_answer_yet_is_waited_for(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    folder = DataFolder.open(tmp_path / "data")
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with folder.lock():
        result = await headgate("doctor", "--data", str(folder.root), "--json", url=url)
    assert result.code == 0, result.out
    found = said(result.json)["system"]
    running = f"`headgate up` runs with {folder.root}"
    assert found["what"] == f"nothing answers at {url}, but {running}"
    assert "wait a little" in found["advice"]
    assert str(folder.root / "logs") in found["advice"]


@pytest.mark.parametrize(
    ("settings", "subject", "what", "advice"),
    [
        (
            "coordinator: {store: etcd}\netcd: {endpoints: '127.0.0.1:%d'}",
            "etcd",
            "etcd can't be reached (nobody listens at 127.0.0.1:%d)",
            "etcd.endpoints",
        ),
        (
            "log: {backend: postgresql, dsn: 'postgresql://127.0.0.1:%d/x'}",
            "log",
            "PostgreSQL can't be reached (",
            "log.dsn",
        ),
    ],
    ids=["etcd", "postgresql"],
)
async def test_a_server_that_is_away_is_named_where_nothing_starts_without_it(
    tmp_path: Path, unused_tcp_port: int, settings: str, subject: str, what: str, advice: str
) -> None:
    folder = DataFolder.open(tmp_path / "data")
    file = tmp_path / "settings.yaml"
    file.write_text(settings % unused_tcp_port)
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with folder.lock():
        result = await headgate(
            *("doctor", "--config", str(file), "--data", str(folder.root), "--json"), url=url
        )
    assert result.code == 1, result.out
    found = said(result.json)
    assert found[subject]["verdict"] == "bad"
    assert found[subject]["what"].startswith(what.replace("%d", str(unused_tcp_port)))
    assert advice in found[subject]["advice"]
    assert found["system"]["advice"] == "bring that back first"
