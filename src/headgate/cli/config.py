"""`headgate config`: what is in effect, and where each value came from."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Annotated

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headgate.cli.command_line import Group, Option
from headgate.config import LoadedConfig, load_config
from headgate.config.keys import KEYS

app = Group(help="Look at the configuration.")


@app.command()
def show(
    config_file: Annotated[
        Path | None, Option("--config", metavar="FILE", help="The YAML file to read.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every setting, its effective value and where that came from."""
    loaded = load_config(config_file=config_file)
    if as_json:
        click.echo(json.dumps(_as_json(loaded), indent=2))
    else:
        _print_table(_table(loaded))
    for warning in loaded.warnings:
        click.echo(f"headgate: warning: {warning}", err=True)


def _as_json(loaded: LoadedConfig) -> dict[str, dict[str, object]]:
    return {
        name: {
            "value": key.json_value(key.of(loaded.config)),
            "origin": str(loaded.origins[name]),
        }
        for name, key in KEYS.items()
    }


def _table(loaded: LoadedConfig) -> Table:
    table = Table("key", "value", "origin", header_style="bold")
    for column in table.columns:
        column.overflow = "fold"
    for _, keys in groupby(KEYS.values(), key=lambda key: key.section):
        for key in keys:
            origin = loaded.origins[key.name]
            # Values that were set stand out from defaults.
            style = "dim" if origin.kind == "default" else "bold"
            table.add_row(
                key.name, Text(key.shown(key.of(loaded.config)), style), Text(str(origin), style)
            )
        table.add_section()
    return table


def _print_table(table: Table) -> None:
    console = Console()
    if not console.is_terminal:
        # A pipe has no width: a line must not break where a screen would.
        console.width = Measurement.get(
            console, console.options.update(width=10_000), table
        ).maximum
    console.print(table)
