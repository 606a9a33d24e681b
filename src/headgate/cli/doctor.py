"""`headgate doctor`: is everything here that Headgate needs, and is what runs well?"""

from __future__ import annotations

import platform
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.cli.output import (
    NO_URL,
    JsonOption,
    UrlOption,
    await_,
    console,
    print_json,
    token_source,
)
from headgate.cli.roles import ConfigOption, DataOption
from headgate.config import Config, inherited_environment, load_config
from headgate.decide.operations.diagnosis import Finding, judge_status
from headgate.errors import HeadgateError, PeerUnreachable

if TYPE_CHECKING:
    from headgate.model.api import Status

FREE_DISK_MIN_BYTES = 1 << 30
WITHOUT_COORDINATOR = (
    "until then events flow as they did, and each router's /health says what isn't read"
)
STYLES = {"ok": "green", "advice": "cyan", "warn": "yellow", "bad": "red"}


def doctor(
    config: ConfigOption = None,
    data: DataOption = None,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Check this machine, the settings and the Headgate that runs.

    Whatever isn't well comes with what to do about it. Exit code 1 when something is bad, 0 with
    advice and warnings.
    """
    loaded = load_config(command_line={"data": data}, config_file=config)
    findings = [
        _python(),
        _java(),
        *_data_folder(loaded.config),
        *await_(_running(url, loaded.config)),
    ]
    findings += [Finding("config", "warn", warning) for warning in loaded.warnings]
    if as_json:
        print_json({"findings": findings})
    else:
        _show(findings)
    if any(finding.verdict == "bad" for finding in findings):
        raise click.exceptions.Exit(1)


def _show(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        text = f"{finding.what}; {finding.advice}" if finding.advice else finding.what
        mark = Text(finding.verdict, style=STYLES[finding.verdict])
        table.add_row(mark, Text(finding.subject), Text(text))
    console().print(table)


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()}, pyspark {version('pyspark')}")


def _java() -> Finding:
    from headgate.spark.starting.java import find_java

    try:
        java = find_java(inherited_environment())
    except HeadgateError as error:
        return Finding("java", "bad", error.message)
    return Finding("java", "ok", f"{java.version} in {java.home} ({java.source})")


def _data_folder(config: Config) -> list[Finding]:
    """Looks, and makes nothing: a folder that isn't there yet is fine."""
    from headgate.adapters.embedded.folder import DataFolder

    path = Path(config.data)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return [Finding("data", "ok", f"{path} will be made by `headgate up`")]
    try:
        folder = DataFolder.open(path)
    except HeadgateError as error:
        return [Finding("data", "bad", error.message)]
    free_bytes = shutil.disk_usage(folder.root).free
    what = f"{folder.root}, {free_bytes / (1 << 30):.1f} GiB free"
    if free_bytes < FREE_DISK_MIN_BYTES:
        return [Finding("data", "warn", what, "make room, or appends will fail")]
    return [Finding("data", "ok", what)]


async def _silent(url: str, config: Config) -> list[Finding]:
    absent = await _absent(config)
    what = f"nothing answers at {url}"
    advice = "bring that back first" if absent else "run `headgate up`"
    if _is_up(config):
        what += f", but `headgate up` runs with {config.data}"
        if not absent:
            advice = f"{_wait(config)}; if it serves at another address, name that with --url"
    return [*absent, Finding("system", "warn", what, advice)]


def _is_up(config: Config) -> bool:
    """Whether something here supervises the roles, and starts again what has ended."""
    from headgate.adapters.embedded.folder import DataFolder

    try:
        DataFolder.check_unused(Path(config.data))
    except HeadgateError:
        return True
    return False


def _wait(config: Config) -> str:
    logs = Path(config.data) / "logs"
    return f"wait a little, it starts what isn't there; if it stays, {logs} says why"


async def _absent(config: Config) -> list[Finding]:
    """What the settings name and nothing starts without."""
    from headgate.wiring.reach import absent_servers

    return [
        Finding(absent.subject, "bad", absent.what, absent.advice)
        for absent in await absent_servers(config)
    ]


async def _running(url: str, config: Config) -> list[Finding]:
    from headgate.client.credentials import credentials
    from headgate.client.http import HttpClient
    from headgate.model.api import Status

    async with HttpClient(url, credentials=credentials(token_source())) as client:
        try:
            status: Status = await client.get("/v1/status", Status)
        except PeerUnreachable as error:
            if "no_answer" in error.details:
                return await _silent(url, config)
            return [*await _absent(config), _without_coordinator(error.message, config)]
        except HeadgateError as error:
            return [Finding("system", "bad", error.message)]
    return judge_status(status)


def _without_coordinator(what: str, config: Config) -> Finding:
    if _is_up(config):
        advice = f"`headgate up` runs: {_wait(config)}; {WITHOUT_COORDINATOR}"
        return Finding("coordinator", "warn", what, advice)
    advice = f"start it with `headgate coordinator`; {WITHOUT_COORDINATOR}"
    return Finding("coordinator", "bad", what, advice)
