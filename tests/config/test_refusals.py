"""Every way a configuration can be wrong, and the sentence it gets."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.config import LoadedConfig, load_config
from headgate.config.keys import KEYS
from headgate.config.rules import RULES
from headgate.errors import InvalidConfig

Load = Callable[..., LoadedConfig]


def refusal(load: Load, **sources: object) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        load(**sources)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        pytest.param(
            {"yaml": "routing: {batch: {max_sizes: 5}}"},
            "unknown key routing.batch.max_sizes (file F): did you mean routing.batch.max_size?",
            id="file",
        ),
        pytest.param(
            {"yaml": "rooting: {mode: direct}"},
            "unknown key rooting (file F): did you mean routing?",
            id="file, section",
        ),
        pytest.param(
            {"yaml": "flush_interval: 5"},
            "unknown key flush_interval (file F): did you mean routing.batch.flush_interval?",
            id="file, only the last part",
        ),
        pytest.param(
            {"yaml": "zzz: 5"},
            "unknown key zzz (file F): `headgate config show` lists every key",
            id="file, nothing like it",
        ),
        pytest.param(
            {"yaml": "routing.batch.max_size: 5"},
            "routing.batch.max_size must be written as nested keys (file F)",
            id="file, dotted",
        ),
        pytest.param(
            {"yaml": "routing: direct"},
            "routing is a section, not a value (file F): set its keys, such as routing.mode",
            id="file, value for a section",
        ),
        pytest.param(
            {"environ": {"HEADGATE_ROUTING__BATCH__MAX_SIZ": "5"}},
            "unknown key routing.batch.max_siz (environment HEADGATE_ROUTING__BATCH__MAX_SIZ): "
            "did you mean HEADGATE_ROUTING__BATCH__MAX_SIZE?",
            id="environment",
        ),
        pytest.param(
            {"environ": {"HEADGATE_ROUTING_BATCH_MAX_SIZE": "5"}},
            "unknown key routing_batch_max_size (environment HEADGATE_ROUTING_BATCH_MAX_SIZE): "
            "did you mean HEADGATE_ROUTING__BATCH__MAX_SIZE?",
            id="environment, single underscores",
        ),
        pytest.param(
            {"environ": {"headgate_log_level": "info"}},
            "unknown key log_level (environment headgate_log_level): "
            "did you mean HEADGATE_LOG_LEVEL?",
            id="environment, lower case",
        ),
        pytest.param(
            {"environ": {"HEADGATE_ROUTING": "{}"}},
            "routing is a section, not a value (environment HEADGATE_ROUTING): "
            "set its keys, such as HEADGATE_ROUTING__MODE",
            id="environment, section",
        ),
        pytest.param(
            {"dotenv": "HEADGATE_LOG_LEVL=info\n"},
            "unknown key log_levl (.env): did you mean HEADGATE_LOG_LEVEL?",
            id=".env",
        ),
        pytest.param(
            {"command_line": {"public.prt": 1}},
            "unknown key public.prt (command line): did you mean public.port?",
            id="command line",
        ),
    ],
)
def test_an_unknown_key_is_named_with_its_source_and_the_nearest_name(
    load: Load, tmp_path: Path, sources: dict[str, object], sentence: str
) -> None:
    expected = sentence.replace("(file F)", f"(file {tmp_path / 'headgate.yaml'})")
    assert str(refusal(load, **sources)) == expected


DURATION = "a duration such as 50ms, 5s, 3m, 1h or 7d"
ORIGINS = (
    "origins such as https://app.example.com,http://localhost:3000 (scheme, host, perhaps a port, "
    "no path), or * for every web page"
)


IMPOSSIBLE = [
    ("routing.batch.max_size", "0", "'0'", "a whole number from 1 to 10000"),
    ("routing.batch.max_size", "many", "'many'", "a whole number from 1 to 10000"),
    ("routing.batch.max_size", 1.5, "1.5", "a whole number from 1 to 10000"),
    ("routing.batch.max_size", True, "True", "a whole number from 1 to 10000"),
    ("routing.batch.max_size", [1], "[1]", "a whole number from 1 to 10000"),
    ("routing.batch.max_size", "", "empty", "a whole number from 1 to 10000"),
    ("routing.batch.max_wait", "50", "'50'", f"{DURATION}, more than 0s"),
    ("routing.batch.max_wait", "0ms", "'0ms'", f"{DURATION}, more than 0s"),
    ("routing.batch.max_wait", "-5s", "'-5s'", f"{DURATION}"),
    ("routing.dlq.max_age", "9999d", "'9999d'", "a duration of at most 3650d"),
    ("ingest.idempotency_ttl", "15m", "'15m'", f"{DURATION}, more than 15m"),
    ("router.window", "999ms", "'999ms'", f"{DURATION}, at least 1s"),
    ("ingest.max_body", "lots", "'lots'", "a size such as 512KiB, 16MiB or 1GiB"),
    ("public.port", 65536, "65536", "a whole number from 0 to 65535"),
    ("public.port", -1, "-1", "a whole number from 0 to 65535"),
    ("public.host", "", "empty", "a host name or address"),
    ("public.host", "http://x", "'http://x'", "a host name or address"),
    ("public.origins", "null", "'null'", ORIGINS),
    ("public.origins", "https://a.example/x", "'https://a.example/x'", ORIGINS),
    ("public.origins", "a.example", "'a.example'", ORIGINS),
    ("public.origins", ["https://a.example", "*"], "['https://a.example', '*']", ORIGINS),
    ("public.origins", [1], "[1]", ORIGINS),
    ("routing.backpressure.hard_watermark", 101, "101", "a whole number from 1 to 100"),
    ("routing.delivery.retry.multiplier", "0.5", "'0.5'", "a number from 1 to 100"),
    ("routing.delivery.retry.multiplier", "nan", "'nan'", "a number from 1 to 100"),
    ("routing.dlq.enabled", "maybe", "'maybe'", "true or false"),
    ("router.master", "local[4]", "'local[4]'", "local[THREADS,TRIES] such as local[8,4]"),
    ("router.driver_memory", "1", "'1'", "an amount such as 800m or 2g"),
    ("client_id", "a b", "'a b'", "up to 128 letters, digits, dots"),
    ("client_id", 7, "7", "up to 128 letters, digits, dots, hyphens and underscores, in quotes"),
    ("data", " ", "' '", "a path"),
    ("routing.mode", "anycast", "'anycast'", "one of direct, consistent_hash, broadcast"),
]


@pytest.mark.parametrize(
    ("name", "raw", "shown", "allowed"),
    IMPOSSIBLE,
    ids=[f"{row[0]} {row[2]}" for row in IMPOSSIBLE],
)
def test_an_impossible_value_is_shown_with_its_source_and_what_is_allowed(
    load: Load, name: str, raw: object, shown: str, allowed: str
) -> None:
    error = refusal(load, command_line={name: raw})
    assert str(error).startswith(f"{name} is {shown} (command line), but must be {allowed}")
    assert error.details["key"] == name


def test_a_value_that_was_nearly_right_gets_a_suggestion(load: Load) -> None:
    error = refusal(load, environ={"HEADGATE_LOG_LEVEL": "verbos"})
    assert str(error) == (
        "log_level is 'verbos' (environment HEADGATE_LOG_LEVEL), but must be "
        "one of error, warn, info, verbose, debug, silly: did you mean verbose?"
    )


def test_a_key_without_a_value_is_refused(load: Load) -> None:
    assert "log_level is empty (file " in str(refusal(load, yaml="log_level:\n"))


CONTRADICTIONS: dict[tuple[str, str], dict[str, object]] = {
    ("public.host", "insecure"): {"public.host": "0.0.0.0"},
    ("coordinator.host", "insecure"): {"coordinator.host": "10.0.0.7"},
    ("ingest.host", "insecure"): {"ingest.host": "10.0.0.7"},
    ("router.host", "insecure"): {"router.host": "::"},
    ("gateway.client_address", "insecure"): {"gateway.client_address": "gate.example.org"},
    ("ingest.host", "ingest.advertise"): {"ingest.host": "0.0.0.0", "insecure": True},
    ("gateway.client_address", "gateway.advertise"): {
        "gateway.client_address": "0.0.0.0",
        "transport.token": "guarded",
    },
    ("routing.backpressure.soft_watermark", "routing.backpressure.hard_watermark"): {
        "routing.backpressure.soft_watermark": 90
    },
    ("routing.backpressure.resume_watermark", "routing.backpressure.soft_watermark"): {
        "routing.backpressure.resume_watermark": 70
    },
    ("routing.batch.max_size", "routing.backpressure.queue_size"): {
        "routing.backpressure.queue_size": 99
    },
    ("routing.batch.max_wait", "routing.batch.flush_interval"): {"routing.batch.max_wait": "9ms"},
    ("routing.delivery.retry.initial_delay", "routing.delivery.retry.max_delay"): {
        "routing.delivery.retry.initial_delay": "6s"
    },
    ("coordinator.check_in", "coordinator.timeout"): {"coordinator.timeout": "14999ms"},
    ("router.lane_report_timeout", "router.window"): {"router.window": "5s"},
    ("router.slots", "router.master"): {"router.slots": 9},
    ("gateway.max_subscribers", "subscriptions.max_per_gateway"): {
        "gateway.max_subscribers": 10_001
    },
    ("subscriptions.ttl", "coordinator.check_in"): {"subscriptions.ttl": "14999ms"},
    ("ingest.max_document", "ingest.max_body"): {
        "ingest.max_body": "1MiB",
        "ingest.max_document": "2MiB",
    },
    ("ingest.set_aside_initial", "ingest.set_aside_max"): {"ingest.set_aside_initial": "6s"},
    ("log.backend", "log.dsn"): {"log.backend": "postgresql"},
    ("coordinator.store", "etcd.endpoints"): {"coordinator.store": "etcd"},
    ("reliability.checkpoint.backend", "etcd.endpoints"): {
        "reliability.checkpoint.backend": "etcd"
    },
    ("reliability.checkpoint.backend", "mongo.url"): {"reliability.checkpoint.backend": "mongo"},
    ("etcd.user", "etcd.password"): {"etcd.user": "headgate"},
    ("transport.tls_certificate", "transport.tls_key"): {"transport.tls_certificate": "cert.pem"},
    ("routing.delivery.protocol", "transport.nats"): {"routing.delivery.protocol": "nats"},
    ("security.jwt.issuer", "security.jwt.audience"): {
        "security.jwt.issuer": "us",
        "security.jwt.keys": "keys.pem",
    },
    ("security.jwt.issuer", "security.jwt.jwks"): {
        "security.jwt.issuer": "us",
        "security.jwt.audience": "them",
    },
    ("security.jwt.secret", "security.jwt.algorithms"): {"security.jwt.algorithms": "HS256"},
    ("public.port", "public.ws_port"): {"public.port": 8781},
    ("gateway.client_port", "public.port"): {"gateway.client_port": 8780},
    ("gateway.client_port", "public.ws_port"): {"gateway.client_port": 8781},
    ("coordinator.router_port", "coordinator.consumer_port"): {"coordinator.router_port": 8001},
    ("coordinator.http_port", "coordinator.router_port"): {"coordinator.http_port": 8000},
    ("coordinator.http_port", "coordinator.consumer_port"): {"coordinator.http_port": 8001},
}


@pytest.mark.parametrize("pair", CONTRADICTIONS, ids=" and ".join)
def test_settings_that_contradict_each_other_are_refused(load: Load, pair: tuple[str, str]) -> None:
    error = refusal(load, command_line=CONTRADICTIONS[pair])
    assert (error.details["key"], error.details["other"]) == pair


def test_every_rule_has_a_contradiction_in_the_table() -> None:
    assert [(rule.left, rule.right) for rule in RULES] == list(CONTRADICTIONS)
    assert {name for pair in CONTRADICTIONS for name in pair} <= set(KEYS)


def test_a_contradiction_shows_both_values_and_where_they_came_from(load: Load) -> None:
    error = refusal(load, environ={"HEADGATE_ROUTING__BACKPRESSURE__SOFT_WATERMARK": "95"})
    assert str(error) == (
        "routing.backpressure.soft_watermark (95, environment "
        "HEADGATE_ROUTING__BACKPRESSURE__SOFT_WATERMARK) must be below "
        "routing.backpressure.hard_watermark (90, default)"
    )


def test_every_mistake_is_said_each_on_its_own_line(load: Load) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(
            yaml="log_levl: info\npublic: {port: 70000, ws_port: many}\nrouter: {slots: 9}\n",
            dotenv="HEADGATE_CLIENT_IDD=a\n",
            environ={"HEADGATE_ROUTING__BATCH__MAX_WAIT": "50"},
        )
    beginnings = [line.split(" (")[0] for line in str(caught.value).splitlines()]
    assert beginnings == [
        "unknown key log_levl",
        "unknown key client_idd",
        "public.port is 70000",
        "public.ws_port is 'many'",
        "routing.batch.max_wait is '50'",
        "router.slots",
    ]
    assert caught.value.details["keys"] == [
        "log_levl",
        "client_idd",
        "public.port",
        "public.ws_port",
        "routing.batch.max_wait",
        "router.slots",
    ]


@pytest.mark.parametrize(
    "yaml",
    [
        "log: {backend: postgresql, dns: postgresql://db/x}",
        "coordinator: {check_in: 10s, timeout: 20}",
    ],
    ids=["misspelled", "impossible"],
)
def test_a_value_that_is_not_known_contradicts_nothing(load: Load, yaml: str) -> None:
    refusal(load, yaml=yaml)


@pytest.mark.parametrize(
    "allowed",
    [
        {"public.port": 0, "public.ws_port": 0, "gateway.client_port": 0},
        {"router.slots": 64, "router.master": "spark://host:7077"},
        {"router.slots": 64, "router.master": "local[*,4]"},
        {"routing.batch.max_wait": "10ms"},
        {"coordinator.timeout": "15s"},
        {"subscriptions.ttl": "0s"},
    ],
    ids=[
        "free ports are never the same",
        "cluster",
        "all cores",
        "equal",
        "exactly a third",
        "no time-to-live",
    ],
)
def test_what_only_looks_like_a_contradiction_is_accepted(
    load: Load, allowed: dict[str, object]
) -> None:
    load(command_line=allowed)


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("routing: [", "is not valid YAML at line 1: "),
        (
            "log_level: info\nlog_level: warn\n",
            "is not valid YAML at line 2: log_level is given twice",
        ),
        ("- a\n- b\n", "must hold keys and values, such as log_level: info"),
        ("just text", "must hold keys and values, such as log_level: info"),
    ],
    ids=["broken", "key given twice", "list", "text"],
)
def test_a_file_that_is_no_mapping_is_refused(load: Load, yaml: str, problem: str) -> None:
    assert f"headgate.yaml {problem}" in str(refusal(load, yaml=yaml))


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    for arguments in ({"config_file": missing}, {"environ": {"HEADGATE_CONFIG": str(missing)}}):
        with pytest.raises(InvalidConfig) as caught:
            load_config(**{"environ": {}, "working_dir": tmp_path, **arguments})  # type: ignore[arg-type]  # a table of keyword arguments
        assert str(caught.value) == f"there is no configuration file {missing}"


@pytest.mark.parametrize("line", ["HEADGATE_LOG_LEVEL", "HEADGATE_LOG_LEVEL info", "=5"])
def test_a_broken_line_in_dotenv_is_refused(load: Load, line: str) -> None:
    error = refusal(load, dotenv=f"HEADGATE_PUBLIC__PORT=0\n{line}\n")
    assert str(error).startswith("line 2 of ")
    assert str(error).endswith(".env is not NAME=VALUE")


def test_a_refusal_survives_pickling(load: Load) -> None:
    error = refusal(load, command_line={"public.port": -1})
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.details) == (str(error), error.details)


def test_an_address_of_the_wrong_kind_is_refused_without_being_repeated(load: Load) -> None:
    error = refusal(load, command_line={"log.dsn": ["postgresql://me:hunter2@db/x"]})
    assert "hunter2" not in str(error)
    assert "must be the address of a PostgreSQL database" in str(error)
