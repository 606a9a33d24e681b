"""Where values came from, also in a process that another one has started with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config import environment_of, load_config
from headgate.config.keys import KEYS
from headgate.config.origins import handed_on, settings_of, told_by
from headgate.config.sources import ORIGINS_VARIABLE


def test_a_process_that_is_started_with_settings_says_who_has_set_them(tmp_path: Path) -> None:
    file = tmp_path / "headgate.yaml"
    file.write_text("log_level: debug\n", encoding="utf-8")
    loaded = load_config(
        command_line={"public.port": 1234},
        config_file=file,
        environ={"HEADGATE_ROUTER__SLOTS": "3"},
        working_dir=tmp_path,
    )
    own = loaded.config.model_copy(update={"client_id": "gateway-1"})
    variables = {**environment_of(own), **handed_on(own, loaded.origins)}
    inside = load_config(environ=variables, working_dir=tmp_path)
    shown = {one.key: one for one in settings_of(inside.config, inside.origins)}
    assert {name: one.origin for name, one in shown.items() if one.origin != "default"} == {
        "log_level": f"file {file}",
        "public.port": "command line",
        "router.slots": "environment HEADGATE_ROUTER__SLOTS",
        "client_id": "chosen at the start",
    }
    assert shown["log_level"].value == "debug"
    assert shown.keys() == KEYS.keys()


def test_what_a_process_is_given_itself_counts_more(tmp_path: Path) -> None:
    config = load_config(environ={}, working_dir=tmp_path).config
    variables = {**environment_of(config), **handed_on(config, {})}
    said = {"log_level": "debug"}
    inside = load_config(command_line=said, environ=variables, working_dir=tmp_path)
    assert str(inside.origins["log_level"]) == "command line"


def test_no_secret_is_shown(tmp_path: Path) -> None:
    environ = {"HEADGATE_SECURITY__CLUSTER__TOKENS": "t" * 30}
    loaded = load_config(environ=environ, working_dir=tmp_path)
    shown = settings_of(loaded.config, loaded.origins)
    assert "ttt" not in str(shown)
    assert next(one for one in shown if one.key == "security.cluster.tokens").value == "***"


@pytest.mark.parametrize(
    "said", ["", "nonsense", "[1]", "{}", '{"log_level": 7}', '{"a": ["x", ""]}']
)
def test_what_is_said_of_origins_stops_no_start(said: str, tmp_path: Path) -> None:
    told = told_by({ORIGINS_VARIABLE: said})
    assert told in (None, {})
    load_config(environ={ORIGINS_VARIABLE: said}, working_dir=tmp_path)
