from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headgate.config import (
    NOT_YET,
    ONLY_AVAILABLE,
    Config,
    LoadedConfig,
    SettingSource,
    environment_of,
    load_config,
    server_url,
)
from headgate.config.keys import KEYS
from headgate.errors import InvalidConfig

Load = Callable[..., LoadedConfig]

KEY = "routing.batch.max_size"
VARIABLE = "HEADGATE_ROUTING__BATCH__MAX_SIZE"
SOURCES: dict[str, dict[str, object]] = {
    "command line": {"command_line": {KEY: 11}},
    "environment": {"environ": {VARIABLE: "12"}},
    ".env": {"dotenv": f"{VARIABLE}=13\n"},
    "file": {"yaml": "routing: {batch: {max_size: 14}}"},
}
VALUES = {"command line": 11, "environment": 12, ".env": 13, "file": 14}


@pytest.mark.parametrize("lower", range(len(SOURCES)))
@pytest.mark.parametrize("higher", range(len(SOURCES)))
def test_the_higher_source_wins(load: Load, higher: int, lower: int) -> None:
    kinds = list(SOURCES)
    given_sources = {**SOURCES[kinds[lower]], **SOURCES[kinds[higher]]}
    winner = kinds[min(higher, lower)]
    loaded = load(**given_sources)
    assert loaded.config.routing.batch.max_size == VALUES[winner]
    assert loaded.origins[KEY].kind == winner


def test_without_any_source_everything_is_the_default(load: Load) -> None:
    loaded = load()
    assert loaded.config == Config()
    assert set(loaded.origins) == set(KEYS)
    assert set(loaded.origins.values()) == {SettingSource("default")}
    assert loaded.warnings == []


PUBLISHED = """
routing:
  mode: direct
  num_partitions: 1
  batch: {max_size: 100, max_wait: 50ms, flush_interval: 10ms}
  backpressure: {soft_watermark: 70, hard_watermark: 90, queue_size: 10000}
  delivery:
    protocol: http
    timeout: 5s
    retry: {max_attempts: 3, initial_delay: 100ms, max_delay: 5s, multiplier: 2.0}
  dlq: {enabled: true, max_age: 7d}
reliability:
  checkpoint: {interval: 5s, event_count: 1000}
  dedup: {enabled: true, cache_size: 10000, ttl: 3m}
  gap_detection: {enabled: true, max_gap: 5m}
  circuit_breaker: {threshold: 5, timeout: 30s}
  shutdown: {flush_timeout: 10s, checkpoint_timeout: 5s}
"""


def test_the_published_routing_and_reliability_settings_are_the_defaults(load: Load) -> None:
    loaded = load(yaml=PUBLISHED)
    assert loaded.config == Config()
    sections = ("routing.", "reliability.")
    unset = {
        name
        for name, origin in loaded.origins.items()
        if name.startswith(sections) and origin.kind == "default"
    }
    assert unset == {
        "routing.max_fanout",
        "routing.batch.max_bytes",
        "routing.backpressure.queue_memory",
        "routing.backpressure.resume_watermark",
        "reliability.checkpoint.backend",
    }


def test_sources_are_merged_key_by_key(load: Load) -> None:
    loaded = load(
        yaml="routing: {batch: {max_size: 7, max_wait: 80ms}}",
        environ={"HEADGATE_ROUTING__BATCH__MAX_WAIT": "90ms"},
    )
    assert loaded.config.routing.batch.max_size == 7
    assert loaded.config.routing.batch.max_wait == 0.09
    assert loaded.config.routing.batch.flush_interval == 0.01


def test_origins_say_where_each_value_is(load: Load, tmp_path: Path) -> None:
    loaded = load(
        command_line={"log_level": "debug", "client_id": None},
        environ={"HEADGATE_PUBLIC__PORT": "0"},
        dotenv="HEADGATE_PUBLIC__WS_PORT=0\n",
        yaml="data: elsewhere",
    )
    shown = {name: str(loaded.origins[name]) for name in loaded.origins}
    assert shown["log_level"] == "command line"
    assert shown["public.port"] == "environment HEADGATE_PUBLIC__PORT"
    assert shown["public.ws_port"] == ".env"
    assert shown["data"] == f"file {tmp_path / 'headgate.yaml'}"
    assert shown["client_id"] == "default"
    assert loaded.config.data == Path("elsewhere")


@pytest.mark.parametrize("source", ["environment", ".env"])
def test_headgate_config_names_the_file(load: Load, tmp_path: Path, source: str) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("log_level: silly\n")
    if source == "environment":
        loaded = load(environ={"HEADGATE_CONFIG": str(file)})
    else:
        loaded = load(dotenv=f"HEADGATE_CONFIG={file}\n")
    assert loaded.config.log_level == "silly"


def test_a_file_on_the_command_line_beats_headgate_config(load: Load) -> None:
    loaded = load(yaml="log_level: silly", environ={"HEADGATE_CONFIG": "nowhere.yaml"})
    assert loaded.config.log_level == "silly"


def test_entries_of_others_in_dotenv_are_left_alone(load: Load) -> None:
    loaded = load(dotenv="# theirs\nDATABASE_URL=x\nEMPTY\nexport HEADGATE_LOG_LEVEL='warn'\n")
    assert loaded.config.log_level == "warn"


@pytest.mark.parametrize("yaml", ["", "# nothing", "routing:\n", "routing:\n  batch:\n"])
def test_an_empty_file_or_section_changes_nothing(load: Load, yaml: str) -> None:
    assert load(yaml=yaml).config == Config()


@pytest.mark.parametrize(
    ("name", "raw", "seconds"),
    [
        ("coordinator.rebalance", 2500, 2.5),
        ("coordinator.timeout", "20000", 20.0),
        ("coordinator.learn_for", 0, 0.0),
        ("router.flush_every", "1m", 60.0),
        ("router.buffer_timeout", 60_000, 60.0),
    ],
)
def test_settings_that_were_milliseconds_take_plain_numbers(
    load: Load, name: str, raw: object, seconds: float
) -> None:
    assert KEYS[name].of(load(command_line={name: raw}).config) == seconds


def test_a_config_cannot_be_changed_or_extended() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().routing.batch.max_size = 5
    with pytest.raises(ValidationError, match="Extra inputs"):
        Config(unknown=1)  # type: ignore[call-arg]  # that is the point


@settings(deadline=None)
@given(st.data())
def test_a_config_survives_the_way_through_the_environment(data: st.DataObject) -> None:
    changed = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "log_level": st.sampled_from(KEYS["log_level"].choices),
                "router.window": st.integers(6, 10**6).map(lambda s: f"{s}s"),
                "ingest.max_body": st.integers(1 << 20, 1 << 40),
                "routing.delivery.retry.multiplier": st.floats(1, 100),
                "routing.dlq.enabled": st.booleans(),
                "data": st.from_regex(r"[a-z0-9 ./]{0,20}[a-z]", fullmatch=True),
            },
        )
    )
    here = Path("does-not-exist")
    config = load_config(command_line=changed, environ={}, working_dir=here).config
    again = load_config(environ=environment_of(config), working_dir=here).config
    assert again == config


# --- parts that aren't there yet ----------------------------------------------------------------


def test_a_choice_whose_part_is_missing_is_refused(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = {"routing.mode": frozenset({"direct", "broadcast"})}
    monkeypatch.setattr("headgate.config.load.ONLY_AVAILABLE", only)
    assert load(command_line={"routing.mode": "broadcast"}).config.routing.mode == "broadcast"
    with pytest.raises(InvalidConfig) as caught:
        load(command_line={"routing.mode": "consistent_hash"})
    assert str(caught.value) == (
        "routing.mode consistent_hash (command line) isn't available in this version; "
        "use broadcast or direct"
    )


def test_a_setting_that_nothing_uses_yet_warns_when_it_is_changed(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.config.load.NOT_YET", frozenset({"routing.dlq.max_age"}))
    assert load(yaml="routing: {dlq: {max_age: 7d}}").warnings == []
    (warning,) = load(environ={"HEADGATE_ROUTING__DLQ__MAX_AGE": "3d"}).warnings
    assert warning == (
        "routing.dlq.max_age is set to 3d (environment HEADGATE_ROUTING__DLQ__MAX_AGE), "
        "but nothing uses it in this version yet"
    )


def test_the_tables_of_missing_parts_name_existing_keys() -> None:
    assert set(KEYS) >= NOT_YET
    for name, values in ONLY_AVAILABLE.items():
        assert values < set(KEYS[name].choices)
        assert KEYS[name].default in values


# --- the server's address -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_url", "environ", "dotenv", "url"),
    [
        ("http://a", {"HEADGATE_URL": "http://b"}, "HEADGATE_URL=http://c", "http://a"),
        (None, {"HEADGATE_URL": "http://b"}, "HEADGATE_URL=http://c", "http://b"),
        (None, {}, "HEADGATE_URL=http://c", "http://c"),
        (None, {}, "", "http://127.0.0.1:8780"),
    ],
    ids=["option", "environment", "dotenv", "default"],
)
def test_the_server_address_has_the_same_precedence(
    tmp_path: Path, given_url: str | None, environ: dict[str, str], dotenv: str, url: str
) -> None:
    (tmp_path / ".env").write_text(dotenv)
    assert server_url(given_url, environ=environ, working_dir=tmp_path) == url


ONE, OTHER = "https://app.example.com", "http://localhost:3000"


@pytest.mark.parametrize(
    "sources",
    [
        {"yaml": f"public: {{origins: ['{ONE}', '{OTHER}']}}"},
        {"yaml": f"public: {{origins: '{ONE},{OTHER}'}}"},
        {"environ": {"HEADGATE_PUBLIC__ORIGINS": f"{ONE},{OTHER}"}},
    ],
    ids=["a list", "commas", "environment"],
)
def test_origins_may_be_a_list_or_have_commas(load: Load, sources: dict[str, object]) -> None:
    config = load(**sources).config
    assert config.public.origins == f"{ONE},{OTHER}"
    assert load(environ=environment_of(config)).config == config


def test_no_origins_may_be_an_empty_list(load: Load) -> None:
    assert load(yaml="public: {origins: []}").config.public.origins == ""


@pytest.mark.parametrize(
    "address",
    ["public.host", "coordinator.host", "ingest.host", "router.host", "gateway.client_address"],
)
def test_an_address_for_everybody_is_opened_on_purpose_and_said(load: Load, address: str) -> None:
    (warning,) = load(command_line={address: "10.0.0.7", "insecure": True}).warnings
    assert warning.startswith(
        f"{address} is 10.0.0.7 (command line): everybody who reaches it may "
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_a_loopback_address_needs_no_purpose(load: Load, host: str) -> None:
    assert load(command_line={"public.host": host}).warnings == []


@pytest.mark.parametrize(
    "guard",
    [
        {"transport.token": "secret"},
        {"security.cluster.tokens": "a-token-of-the-cluster"},
        {"routing.delivery.protocol": "nats", "transport.nats": "nats://10.0.0.1:4222"},
    ],
    ids=["by a token", "by passes", "by NATS"],
)
def test_deliveries_that_are_guarded_are_open_to_nobody_else(
    load: Load, guard: dict[str, object]
) -> None:
    assert load(command_line={"gateway.client_address": "10.0.0.7", **guard}).warnings == []


@pytest.mark.parametrize(
    ("address", "guards"),
    [
        ("public.host", {"security.enabled": True}),
        ("router.host", {"security.enabled": True}),
        ("coordinator.host", {"security.enabled": True, "security.cluster.tokens": "x" * 30}),
        ("ingest.host", {"security.enabled": True, "security.cluster.tokens": "x" * 30}),
    ],
)
def test_a_guarded_address_is_opened_without_more(
    load: Load, address: str, guards: dict[str, object]
) -> None:
    assert load(command_line={address: "10.0.0.7", **guards}).warnings == []
    for left_out in guards:
        less = {key: value for key, value in guards.items() if key != left_out}
        with pytest.raises(InvalidConfig, match=f"{address}.* must be a loopback address.*guarded"):
            load(command_line={address: "10.0.0.7", **less})
