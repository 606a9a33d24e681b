"""Every setting that isn't marked as "not yet" reaches what it is meant for.

What each one does there is tested with its part; this shows that none is left lying on the way.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.config import NOT_YET, ONLY_AVAILABLE, Config, LoadedConfig, SettingSource
from headgate.config.keys import KEYS
from headgate.demo.stage import plan_of
from headgate.wiring import access, roles
from headgate.wiring.auditing import audit_options

ELSEWHERE = {
    "data": "every command opens the data folder it names: tests/system",
    "log_file_size": "the supervisor gets it: tests/services/test_supervisor.py",
    "insecure": "opens addresses that are refused without it: test_load.py",
    "security.jwt.grants": "are parsed into options: tests/wiring/test_access.py",
    "demo.window": "demo_config makes it the router's window: tests/demo",
}
ACTING = sorted(KEYS.keys() - NOT_YET - ONLY_AVAILABLE.keys() - ELSEWHERE.keys())


@pytest.fixture(autouse=True)
def _same_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "incarnation", lambda: "always the same")


def built_from(config: Config) -> object:
    """All that is made of a configuration, as one comparable value."""
    folder = DataFolder(Path("somewhere"))
    origins = {key: SettingSource("default") for key in KEYS}
    return (
        roles.coordinator_settings(config),
        roles.ingest_options(config),
        (config.ingest.server_address, config.ingest.server_port),
        roles.gateway_options(config),
        roles.listener_options(config),
        audit_options(config, folder, "gateway"),
        (config.gateway.server_address, config.gateway.server_port),
        roles.router_settings(config, folder),
        roles.spark_settings(config, folder, node_id="router"),
        access.access_options(config),
        access.jwt_rules(config),
        access.known_principals(config, "gateway") is None,
        plan_of(LoadedConfig(config, origins, []), seed=1, seconds=None),
    )


def changed(config: Config, key: str) -> Config:
    """`config` with another value at `key`; whether it is a sensible one doesn't matter here."""
    section, _, rest = key.partition(".")
    value = getattr(config, section)
    if rest:
        return config.model_copy(update={section: changed(value, rest)})
    other = value + 1 if isinstance(value, int | float) else f"{value}x"
    return config.model_copy(update={section: other})


@pytest.mark.parametrize("key", ACTING)
def test_a_changed_setting_changes_what_is_built(key: str) -> None:
    config = Config(client_id="node")
    assert built_from(config) == built_from(config)
    assert built_from(changed(config, key)) != built_from(config)


def test_nothing_is_said_to_act_elsewhere_that_does_not_exist() -> None:
    assert ELSEWHERE.keys() <= KEYS.keys() - NOT_YET
