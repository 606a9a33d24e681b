"""`headgate coordinator|ingest|router|gateway`: one role in this process.

A role prints one line, `ready` with its address, when it serves, logs to standard error, and ends
on SIGTERM, Ctrl-C or, when supervised, when the supervisor is gone. SIGUSR1 ends it, too, and says
that it will be back: what it owns waits for it. A second signal doesn't wait for what is in flight:
everything durable is on disk, and the rest is delivered again. `headgate node restart` has it stop
in the same way and begin anew in place, as the same process with the same command line.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Protocol

import click

from headgate.cli.command_line import Option
from headgate.config import Config, LoadedConfig, load_config
from headgate.errors import InvalidConfig
from headgate.tasks import first_of, notice_callbacks

CONNECT_PAUSE_S = 0.25

ConfigOption = Annotated[
    Path | None, Option("--config", metavar="FILE", help="YAML file with settings.")
]
DataOption = Annotated[
    Path | None, Option("--data", metavar="DIR", help="Folder for everything durable.")
]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, such as routing.batch.max_size=200; may be given several times.",
    ),
]
InsecureOption = Annotated[
    bool,
    Option(
        "--insecure",
        help="Listen also where others than this machine reach it, and may do everything.",
    ),
]
SupervisedOption = Annotated[bool, Option("--supervised", hidden=True)]


class Service(Protocol):
    """What every role offers: `start` names its address, `failed` raises when it can't go on, and
    returns when it is to begin anew."""

    @property
    def is_to_restart(self) -> bool: ...

    async def start(self) -> str: ...

    async def failed(self) -> None: ...

    async def stop(self, *, returns: bool) -> None: ...


def coordinator(
    config: ConfigOption = None,
    data: DataOption = None,
    settings: SetOption = None,
    insecure: InsecureOption = False,
    supervised: SupervisedOption = False,
) -> None:
    """Run the coordinator: members, topics, assignments, subscriptions."""
    _run("coordinator", _load(config, data, settings, insecure), supervised)


def ingest(
    config: ConfigOption = None,
    data: DataOption = None,
    settings: SetOption = None,
    insecure: InsecureOption = False,
    supervised: SupervisedOption = False,
) -> None:
    """Run an ingest node: takes produce requests and appends them to the log."""
    _run("ingest", _load(config, data, settings, insecure), supervised)


def router(
    config: ConfigOption = None,
    data: DataOption = None,
    settings: SetOption = None,
    insecure: InsecureOption = False,
    supervised: SupervisedOption = False,
) -> None:
    """Run a router: a Spark application that follows the log, matches and delivers."""
    _run("router", _load(config, data, settings, insecure), supervised)


def gateway(
    config: ConfigOption = None,
    data: DataOption = None,
    settings: SetOption = None,
    insecure: InsecureOption = False,
    supervised: SupervisedOption = False,
) -> None:
    """Run a gateway: the public address; serves subscribers over WebSocket and SSE."""
    _run("gateway", _load(config, data, settings, insecure), supervised)


def given(data: Path | None, settings: Sequence[str] | None, insecure: bool) -> dict[str, object]:
    """What the command line says, by key; of a setting that is given twice, the last."""
    values: dict[str, object] = {"data": data, "insecure": True if insecure else None}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise InvalidConfig(
                f"--set {setting} has no value: write it as KEY=VALUE, such as log_level=debug",
                key=key,
            )
        values[key.strip()] = value
    return values


def _load(
    config_file: Path | None, data: Path | None, settings: Sequence[str] | None, insecure: bool
) -> LoadedConfig:
    loaded = load_config(command_line=given(data, settings, insecure), config_file=config_file)
    for warning in loaded.warnings:
        click.echo(f"headgate: {warning}", err=True)
    return loaded


def _run(role: str, loaded: LoadedConfig, supervised: bool) -> None:
    from headgate.telemetry import configure_logging

    configure_logging(loaded.config.log_level, role=role, node_id=loaded.config.client_id)
    if sys.platform == "win32":
        begins_anew = asyncio.run(_serve(role, loaded, supervised))
    else:
        import uvloop

        begins_anew = uvloop.run(_serve(role, loaded, supervised))
    if begins_anew:
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the command line of this process


class _Stopping(asyncio.Event):
    """Set when the role is to end; `returns`: to begin anew, which it says to the coordinator."""

    returns = False


async def _serve(role: str, loaded: LoadedConfig, supervised: bool) -> bool:
    """Returns whether it is to begin anew."""
    stopping = _Stopping()
    loop = asyncio.get_running_loop()
    notice_callbacks(loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, stopping, number)
    if sys.platform != "win32":
        loop.add_signal_handler(signal.SIGUSR1, _stop_to_return, stopping)
    from headgate.adapters.processes import collect_rarely, on_parent_gone

    if supervised:
        on_parent_gone(lambda: loop.call_soon_threadsafe(stopping.set))
    await first_of(_coordinator_answers(role, loaded.config), stopping.wait())
    if stopping.is_set():
        return False
    service = _build(role, loaded)
    try:
        address = await first_of(service.start(), stopping.wait())
        if address is not None:
            collect_rarely()
            print(f"ready {address}", flush=True)
            await first_of(service.failed(), stopping.wait())
    finally:
        await service.stop(returns=stopping.returns or service.is_to_restart)
    return service.is_to_restart and not stopping.is_set()


def _stop(stopping: _Stopping, number: int) -> None:
    if stopping.is_set():
        os._exit(128 + number)
    stopping.set()


def _stop_to_return(stopping: _Stopping) -> None:
    if not stopping.is_set():
        stopping.returns = True
        stopping.set()


async def _coordinator_answers(role: str, config: Config) -> None:
    """Wait until there is a listener where the coordinator should be, and say so when that takes.

    A role that is ready has a coordinator; one that merely runs would look the same. A router waits
    itself: it may know enough to go on without one.
    """
    if role in ("coordinator", "router"):
        return
    from headgate.wiring.control import addresses

    coordinators = addresses(
        *{
            "ingest": (config.ingest.server_address, config.ingest.server_port),
            "gateway": (config.gateway.server_address, config.gateway.server_port),
        }[role]
    )
    from headgate.wiring.reach import listens

    said = False
    while True:
        for address in coordinators.split(","):
            if await listens(address):
                return
        if not said:
            click.echo(f"headgate: {_waiting(role, coordinators)}", err=True)
            said = True
        await asyncio.sleep(CONNECT_PAUSE_S)


def _waiting(role: str, coordinators: str) -> str:
    from headgate.config.keys import KEYS

    address, port = (f"{role}.{key}" for key in ("server_address", "server_port"))
    return (
        f"waiting for the coordinator at {coordinators}; if it is elsewhere, set {address} and "
        f"{port} ({KEYS[address].env_name}, {KEYS[port].env_name})"
    )


def _build(role: str, loaded: LoadedConfig) -> Service:
    from headgate.adapters.embedded.folder import DataFolder
    from headgate.config.origins import settings_of
    from headgate.wiring import roles

    folder = DataFolder.open(loaded.config.data)
    builders: dict[str, Callable[..., Service]] = {
        "coordinator": roles.build_coordinator,
        "ingest": roles.build_ingest,
        "router": roles.build_router,
        "gateway": roles.build_gateway,
    }
    return builders[role](loaded.config, folder, shown=settings_of(loaded.config, loaded.origins))
