"""`headgate bench`: measures this machine; each benchmark brings its own baseline.

With --json, standard output has one object per benchmark and nothing else.
"""

from __future__ import annotations

import asyncio
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headgate.cli.command_line import Argument, Option
from headgate.cli.output import JsonOption, console, print_json, say
from headgate.errors import HeadgateError, InvalidRequest

if TYPE_CHECKING:
    from headgate.bench.result import Benchmark, Result


def bench(
    name: Annotated[
        str | None, Argument(metavar="NAME", help="Which one; without it they are listed.")
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="Within two minutes each; without NAME, all of them.")
    ] = False,
    as_json: JsonOption = False,
    events: Annotated[
        Path | None, Option(help="match: your events, one JSON document per line.")
    ] = None,
    filters: Annotated[
        Path | None, Option(help="match: your filters, one expression per line.")
    ] = None,
    plot: Annotated[Path | None, Option(help="match: where to write the curve, as SVG.")] = None,
) -> None:
    """Measure this machine."""
    from headgate.bench.registry import BENCHMARKS

    if (events or filters or plot) and name != "match":
        raise InvalidRequest("--events, --filters and --plot belong to headgate bench match")
    if events or filters:
        _answer(_own(events, filters, quick=quick), as_json=as_json)
        return
    if name is None and not quick:
        _list(list(BENCHMARKS.values()), as_json=as_json)
        return
    chosen = list(BENCHMARKS.values()) if name is None else [_named(name, BENCHMARKS)]
    for benchmark in chosen:
        result = _run(benchmark, quick=quick)
        if plot is not None:
            _plot(result, plot)
        _answer(result, as_json=as_json)


def _answer(result: Result, *, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        _print(result)


def _own(events: Path | None, filters: Path | None, *, quick: bool) -> Result:
    from headgate.bench.match.own import run_own

    if events is None or filters is None:
        raise InvalidRequest("--events and --filters go together: give both files")
    return run_own(events, filters, quick=quick, say=lambda text: say(f"match: {text}"))


def _plot(result: Result, path: Path) -> None:
    from headgate.bench.match.plot import svg

    try:
        path.write_text(svg(result.figures), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written: {error.strerror}") from error


def _list(benchmarks: list[Benchmark], *, as_json: bool) -> None:
    if as_json:
        print_json([{"name": one.name, "about": one.about} for one in benchmarks])
        return
    for one in benchmarks:
        print(f"{one.name:12} {one.about}")


def _named(name: str, benchmarks: dict[str, Benchmark]) -> Benchmark:
    if name in benchmarks:
        return benchmarks[name]
    meant = difflib.get_close_matches(name, benchmarks, n=1)
    hint = f"did you mean {meant[0]}?" if meant else f"there is {', '.join(benchmarks)}"
    raise InvalidRequest(f"there is no benchmark {name}: {hint}")


def _run(benchmark: Benchmark, *, quick: bool) -> Result:
    from headgate.bench.result import Failed

    try:
        return asyncio.run(benchmark.run(quick, lambda text: say(f"{benchmark.name}: {text}")))
    except Failed as error:
        raise HeadgateError(f"{benchmark.name}: {error}") from error


def _print(result: Result) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for rows in (result.figures, result.ratios):
        for key, value in rows.items():
            table.add_row(key, f"{value:,g}")
        table.add_section()
    print(f"{result.name}: " + ", ".join(f"{k} {v}" for k, v in result.conditions.items()))
    console().print(table)
