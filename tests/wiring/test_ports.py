"""The ports of all roles on one machine: which are meant, which are any free ones."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from headgate.adapters.processes import is_port_free
from headgate.cli import up as module
from headgate.cli.main import app
from headgate.config import LoadedConfig, load_config
from headgate.demo.stage import PORTS
from headgate.errors import PortInUse
from headgate.wiring.machine import plan_ports
from tests.servers.process import free_port


def planned(**given: object) -> dict[str, int]:
    named = {key.replace("__", "."): value for key, value in given.items()}
    loaded = load_config(command_line={**dict.fromkeys(PORTS, 0), **named})
    config = plan_ports(loaded.config, loaded.origins)
    return {
        "port": config.public.port,
        "ws_port": config.public.ws_port,
        "http_port": config.coordinator.http_port,
    }


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("key", ["public.port", "public.ws_port", "coordinator.http_port"])
def test_a_port_in_use_is_named_with_every_way_to_choose_another(key: str, taken: int) -> None:
    with pytest.raises(PortInUse) as refused:
        planned(**{key.replace(".", "__"): taken})
    variable = f"HEADGATE_{key.upper().replace('.', '__')}"
    assert str(refused.value) == (
        f"port {taken} on 127.0.0.1 is in use; stop what listens there, or choose another with "
        f"`headgate up --port N`, {variable} or {key}"
    )


def test_ports_that_somebody_set_are_kept() -> None:
    port = free_port()
    assert planned(coordinator__http_port=port)["http_port"] == port


@pytest.mark.parametrize("is_free", [True, False])
def test_the_coordinator_is_at_its_usual_port_if_that_is_free(
    monkeypatch: pytest.MonkeyPatch, is_free: bool
) -> None:
    monkeypatch.setattr("headgate.wiring.machine.is_port_free", lambda *_: is_free)
    given: dict[str, object] = {key: 0 for key in PORTS if key != "coordinator.http_port"}
    loaded = load_config(command_line=given)
    port = plan_ports(loaded.config, loaded.origins).coordinator.http_port
    assert (port == 8782) == is_free
    assert port


def started(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> LoadedConfig:
    seen: list[LoadedConfig] = []

    async def run(loaded: LoadedConfig) -> None:
        seen.append(loaded)

    monkeypatch.setattr(module, "_up", run)
    ended = CliRunner().invoke(app, ["up", *arguments])
    assert ended.exit_code == 0, ended.output
    return seen[0]


def test_the_neighbours_follow_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    config = started(monkeypatch, "--port", "9000").config
    ports = config.public.port, config.public.ws_port, config.coordinator.http_port
    assert ports == (9000, 9001, 9002)


def test_any_free_port_has_any_free_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = started(monkeypatch, "--port", "0")
    config = plan_ports(loaded.config, loaded.origins)
    ports = config.public.port, config.public.ws_port, config.coordinator.http_port
    assert len(set(ports)) == 3
    assert all(is_port_free("127.0.0.1", port) for port in ports)
