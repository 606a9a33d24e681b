"""The demo's own configuration, and the bar while it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli.views.demo import start_share
from headgate.demo.draining import ROLES
from headgate.demo.stage import PORTS, demo_config, plan_of


def value_of(config: object, key: str) -> object:
    for part in key.split("."):
        config = getattr(config, part)
    return config


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    file = tmp_path / "headgate.yaml"
    file.write_text(
        "public: {port: 8780}\ncoordinator: {http_port: 8999}\ndata: mine\n"
        "router: {window: 5m}\ndemo: {count: 10, partitions: 3, window: 4s}\n"
    )
    return file


def test_the_demo_takes_neither_the_ports_nor_the_data_of_a_configured_system(
    tmp_path: Path, settings_file: Path
) -> None:
    config = demo_config(tmp_path / "data", settings_file).config
    assert [value_of(config, key) for key in PORTS] == [0] * len(PORTS)
    assert config.data == tmp_path / "data"


def test_the_demo_has_its_own_window_and_rate(tmp_path: Path, settings_file: Path) -> None:
    loaded = demo_config(tmp_path / "data", settings_file)
    assert loaded.config.router.window == 4.0
    plan = plan_of(loaded, seed=3, seconds=None)
    assert (plan.per_s, plan.partitions, plan.seed) == (30, 3, 3)


@pytest.mark.parametrize("window", ["1s", "5s", "2m"])
def test_any_window_that_the_demo_may_have_is_one_the_router_may_have(
    tmp_path: Path, window: str
) -> None:
    file = tmp_path / "headgate.yaml"
    file.write_text(f"demo: {{window: {window}}}\n")
    config = demo_config(tmp_path / "data", file).config
    assert config.router.lane_report_timeout < config.router.window


def test_the_bar_moves_with_every_role_and_with_time_and_ends_full() -> None:
    shares = [start_share([], 0), start_share(["coordinator"], 1)]
    shares += [start_share(list(ROLES[:3]), seconds) for seconds in (2, 5, 20, 3_600)]
    shares.append(start_share(list(ROLES), 3_600))
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-2] < 1
    assert shares[-1] == pytest.approx(1)
