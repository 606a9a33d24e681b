from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli.config import app
from headgate.config.keys import KEYS
from headgate.errors import InvalidConfig


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("HEADGATE_")]:
        monkeypatch.delenv(name)


def test_it_prints_every_value_and_its_origin(
    monkeypatch: pytest.MonkeyPatch, yaml_file: Callable[[str], Path]
) -> None:
    monkeypatch.setenv("HEADGATE_ROUTING__BATCH__MAX_WAIT", "75ms")
    Path(".env").write_text("HEADGATE_LOG_LEVEL=debug\n")
    file = yaml_file("ingest: {max_body: 8MiB}")

    result = CliRunner().invoke(app, ["show", "--config", str(file)])

    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines()]
    table = {row[0]: row[1:] for row in rows if len(row) == 3}
    assert table["routing.batch.max_wait"] == [
        "75ms",
        "environment HEADGATE_ROUTING__BATCH__MAX_WAIT",
    ]
    assert table["log_level"] == ["debug", ".env"]
    assert table["ingest.max_body"] == ["8MiB", f"file {file}"]
    assert table["reliability.dedup.ttl"] == ["3m", "default"]
    assert table.keys() >= KEYS.keys()


def test_json_has_the_same_for_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_PUBLIC__PORT", "0")
    result = CliRunner().invoke(app, ["show", "--json"])
    shown = json.loads(result.stdout)
    assert set(shown) == set(KEYS)
    assert shown["public.port"] == {"value": 0, "origin": "environment HEADGATE_PUBLIC__PORT"}
    assert shown["routing.batch.max_wait"] == {"value": "50ms", "origin": "default"}
    assert shown["routing.dlq.enabled"] == {"value": True, "origin": "default"}
    assert shown["data"] == {"value": "headgate-data", "origin": "default"}


def test_warnings_go_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.config.load.NOT_YET", frozenset({"routing.dlq.max_age"}))
    monkeypatch.setenv("HEADGATE_ROUTING__DLQ__MAX_AGE", "1d")
    result = CliRunner().invoke(app, ["show", "--json"])
    assert result.stderr.startswith("headgate: warning: routing.dlq.max_age is set to 1d (")
    json.loads(result.stdout)


def test_a_refusal_reaches_the_outer_command_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_LOG_LEVEL", "loud")
    result = CliRunner().invoke(app, ["show"])
    assert isinstance(result.exception, InvalidConfig)
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("", ""),
        ("postgresql://me@db:5432/x", "postgresql://me@db:5432/x"),
        ("postgresql://me:hunter2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:hunt@er:2/@db:5432/x", "postgresql://me:***@db:5432/x"),
        ("postgresql://db/x?user=me&password=hunter2", "postgresql://db/x?user=me&password=***"),
        ("host=db password=hunter2 user=me", "host=db password=*** user=me"),
        ("host=db password = 'hunter2 \\' x' user=me", "host=db password = *** user=me"),
        ("host=db password='hunter2", "host=db password=***"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_the_databases_password_is_never_printed(
    monkeypatch: pytest.MonkeyPatch, dsn: str, shown: str, options: list[str]
) -> None:
    monkeypatch.setenv("HEADGATE_LOG__DSN", dsn)
    result = CliRunner().invoke(app, ["show", *options])
    assert result.exit_code == 0, result.output
    assert shown in result.stdout
    assert "hunt" not in result.output


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HEADGATE_MONGO__URL", "mongodb://me:hunter2@one,two/?replicaSet=x"),
        ("HEADGATE_MONGO__URL", "mongodb://one/?tlsCertificateKeyFilePassword=hunter2"),
        ("HEADGATE_MONGO__URL", "mongodb://one/?authMechanismProperties=AWS_SESSION_TOKEN:hunter2"),
        ("HEADGATE_ETCD__PASSWORD", "hunter2"),
        ("HEADGATE_TRANSPORT__NATS", "nats://me:hunter2@one:4222,nats://me:hunter3@two:4222"),
        ("HEADGATE_TRANSPORT__NATS", "nats://hunter2@one:4222,nats://hunter2@two:4222"),
        ("HEADGATE_SECURITY__JWT__JWKS", "https://me:hunter2@id.example.com/keys.json"),
    ],
)
def test_a_stores_password_is_never_printed(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, options: list[str]
) -> None:
    monkeypatch.setenv("HEADGATE_ETCD__USER", "me")
    monkeypatch.setenv("HEADGATE_ETCD__PASSWORD", "hunter1")
    monkeypatch.setenv("HEADGATE_SECURITY__JWT__ISSUER", "us")
    monkeypatch.setenv("HEADGATE_SECURITY__JWT__AUDIENCE", "headgate")
    monkeypatch.setenv("HEADGATE_SECURITY__JWT__JWKS", "https://id.example.com/keys.json")
    monkeypatch.setenv(variable, value)
    result = CliRunner().invoke(app, ["show", *options])
    assert result.exit_code == 0, result.output
    assert "***" in result.stdout
    assert "hunt" not in result.output
