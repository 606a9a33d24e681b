"""How a role in its own process ends."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from headgate.cli import roles
from headgate.config import Config, LoadedConfig, load_config
from headgate.errors import InvalidConfig
from headgate.tasks import TaskDied


def test_the_first_signal_stops_and_the_second_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    stopping = roles._Stopping()
    roles._stop(stopping, signal.SIGTERM)
    assert stopping.is_set()
    assert not stopping.returns
    assert codes == []
    roles._stop(stopping, signal.SIGTERM)
    assert codes == [143]


LOADED = LoadedConfig(Config(), {}, [])


class Service:
    """A role that can't go on, or is to begin anew, or goes on until it is told to stop."""

    def __init__(self, failure: Exception | None = None, *, is_to_restart: bool = False) -> None:
        self.failure = failure
        self.is_to_restart = is_to_restart
        self.is_up = asyncio.Event()
        self.stopped: list[bool] = []
        """Whether it returns, each time that it was stopped."""

    async def start(self) -> str:
        return "here"

    async def failed(self) -> None:
        self.is_up.set()
        if self.failure is not None:
            raise self.failure
        if not self.is_to_restart:
            await asyncio.Event().wait()

    async def stop(self, *, returns: bool) -> None:
        self.stopped.append(returns)


@pytest.mark.parametrize(
    "failure", [RuntimeError("a mistake"), TaskDied("ingest control returned")], ids=repr
)
async def test_a_role_that_can_not_go_on_stops_and_says_why(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    service = Service(failure)
    monkeypatch.setattr(roles, "_build", lambda *_: service)
    with pytest.raises(type(failure)):
        await roles._serve("coordinator", LOADED, supervised=False)
    assert service.stopped == [False]


async def test_a_role_that_is_to_begin_anew_says_that_it_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(is_to_restart=True)
    monkeypatch.setattr(roles, "_build", lambda *_: service)
    assert await roles._serve("coordinator", LOADED, supervised=False)
    assert service.stopped == [True]


@pytest.mark.parametrize(
    ("number", "returns"),
    [(signal.SIGTERM, False), (signal.SIGUSR1, True)],
    ids=["stop", "stop to return"],
)
async def test_a_signal_says_whether_the_role_returns(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, returns: bool
) -> None:
    service = Service()
    monkeypatch.setattr(roles, "_build", lambda *_: service)
    serving = asyncio.create_task(roles._serve("coordinator", LOADED, supervised=False))
    async with asyncio.timeout(30):
        await service.is_up.wait()
        os.kill(os.getpid(), number)
        assert not await serving, "whoever started it starts it again"
    assert service.stopped == [returns]


async def test_whoever_waits_for_the_coordinator_says_what_to_set(
    capsys: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    ingest = {"server_address": "127.0.0.1", "server_port": unused_tcp_port}
    config = Config.model_validate({"ingest": ingest})
    waiting = asyncio.create_task(roles._coordinator_answers("ingest", config))
    said = ""
    async with asyncio.timeout(30):
        while not said:
            await asyncio.sleep(0.01)
            said = capsys.readouterr().err
    waiting.cancel()
    assert said == (
        f"headgate: waiting for the coordinator at 127.0.0.1:{unused_tcp_port}; if it is "
        "elsewhere, set ingest.server_address and ingest.server_port "
        "(HEADGATE_INGEST__SERVER_ADDRESS, HEADGATE_INGEST__SERVER_PORT)\n"
    )


def test_any_setting_can_be_given_on_the_command_line() -> None:
    said = roles.given(None, ["routing.batch.max_size=7", "log.dsn=host=db user=x"], insecure=True)
    assert said == {
        "data": None,
        "insecure": True,
        "routing.batch.max_size": "7",
        "log.dsn": "host=db user=x",
    }
    loaded = load_config(command_line=said | {"log.backend": "postgresql"}, environ={})
    assert (loaded.config.routing.batch.max_size, loaded.config.insecure) == (7, True)


def test_a_setting_without_a_value_is_said_in_one_sentence() -> None:
    with pytest.raises(InvalidConfig, match="--set log_level has no value: write it as KEY=VALUE"):
        roles.given(None, ["log_level"], insecure=False)
