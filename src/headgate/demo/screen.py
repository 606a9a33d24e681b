"""How the demo looks: a live screen on a terminal, sparse plain lines elsewhere.

Pure: a view in, something to print out. Never fails on odd values: a status may be of any moment,
before the first report or while half of the system is being started again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headgate.demo.page.booth import PAGE_PATH
from headgate.demo.summary import ConsumerSummary, Summary, format_ms
from headgate.demo.view import ConsumerView, GatewayView, PartitionView, SubscriberView, View

BAR_WIDTH = 24
WIDE = 110
"""From this width on there is room for more than the essentials."""

LATENCY = "latency p50 / p99"
VICTIMS = {"gateway": "gateway", "ingest": "ingest node", "router": "router"}
"""The roles to kill, the one that is back soonest first."""
SPARK_TAKES = "Spark takes 10 to 30 s"
PARTITIONS_SHOWN = 16
TARGETS_SHOWN = 12
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(value: float, largest: float, width: int = BAR_WIDTH) -> str:
    """A bar of `width` characters at `largest`, to an eighth of a character."""
    if not (math.isfinite(value) and math.isfinite(largest)) or largest <= 0 or value <= 0:
        return ""
    eighths = round(min(value / largest, 1.0) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


@dataclass(frozen=True, slots=True)
class Screen:
    """The view as large as the terminal allows: what is of least use gives way in one that is low,
    and the title, which says how to end it, is always there."""

    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Panel]:
        for layout in LAYOUTS:
            panel = _panel(self.view, options.max_width, layout)
            if len(console.render_lines(panel, options)) <= console.height:
                break
        yield panel


@dataclass(frozen=True, slots=True)
class Layout:
    """How much is shown: lines between the parts, and so many partitions."""

    is_spaced: bool
    partitions: int


LAYOUTS = (
    Layout(is_spaced=True, partitions=PARTITIONS_SHOWN),
    Layout(is_spaced=False, partitions=PARTITIONS_SHOWN),
    Layout(is_spaced=False, partitions=4),
    Layout(is_spaced=False, partitions=1),
)
"""The first that fits is taken, else the last."""


def _panel(view: View, width: int, layout: Layout) -> Panel:
    # Two tables side by side, each with about 28 columns of text beside its bars.
    bar_width = max(4, min(BAR_WIDTH, (width - 8) // 2 - 28))
    groups: list[list[RenderableType]] = [
        [_totals(view, wide=width >= WIDE)],
        [_flow(view, bar_width, layout.partitions)],
        [_consumers(view.consumers) if view.consumers else _subscribers(view.subscribers)],
    ]
    if view.phase == "finished":
        groups.append([_roles(view)])
    else:
        said = filter(None, (view.waiting, _restarting(view), view.trouble))
        groups += [[Text(sentence, style="yellow")] for sentence in said]
        groups.append([_roles(view), _hints(view, wide=width >= WIDE)])
    if layout.is_spaced:
        groups = [groups[0], *([Text(""), *group] for group in groups[1:])]
    parts = [part for group in groups for part in group]
    by = f" · {view.origin}" if view.origin else ""
    return Panel(Group(*parts), title=f"Headgate demo{by} · {_clock(view)}", padding=(0, 1))


def _clock(view: View) -> str:
    elapsed = f"{max(0.0, view.elapsed_s):.0f} s"
    if view.phase == "producing" and view.total_s is None:
        return f"{elapsed} · Ctrl-C ends it with a summary"
    of = f" of {view.total_s:.0f} s" if view.phase == "producing" and view.total_s else ""
    return f"{view.phase} · {elapsed}{of}"


def _totals(view: View, *, wide: bool) -> Table:
    lag_ms = f" · {view.lag_ms:,} ms" if wide and view.lag_ms else ""
    table = Table.grid(padding=(0, 1), expand=True)
    for heading in _HEADINGS:
        # Two durations need more room than a number.
        table.add_column(justify="center", ratio=4 if heading == LATENCY else 3)
    table.add_row(*(Text(heading, style="dim") for heading in _HEADINGS))
    table.add_row(
        Text(f"{view.produced_per_s:,.0f}/s", style="bold cyan"),
        Text(f"{view.delivered_per_s:,.0f}/s", style="bold green"),
        Text(_latency(view), style="bold"),
        Text(f"{view.missing:,}", style="bold"),
        Text(f"{view.window}", style="bold magenta"),
    )
    table.add_row(
        Text(f"{view.produced:,}", style="dim"),
        Text(f"{view.delivered:,}", style="dim"),
        Text("acknowledged to received" if wide else "acked to received", style="dim"),
        Text(f"lag {view.lag:,}{lag_ms}", style="dim"),
        Text(f"{view.windows} changed", style="dim"),
    )
    return table


def _latency(view: View) -> str:
    if not view.p99_ms:
        return "–"  # nothing arrived lately
    return f"{format_ms(view.p50_ms)} / {format_ms(view.p99_ms)}"


_HEADINGS = ("produced", "delivered", LATENCY, "on their way", "Spark window")


def _flow(view: View, bar_width: int, most: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    partitions = _partitions(view.partitions, bar_width, most)
    table.add_row(partitions, _gateways(view.gateways, bar_width))
    return table


def _partitions(partitions: tuple[PartitionView, ...], bar_width: int, most: int) -> Table:
    table = _table("partition", "per s", "", "lag", bar_width=bar_width)
    largest = max((p.per_s for p in partitions), default=0.0)
    for shown in partitions[:most]:
        table.add_row(
            f"flights:{shown.partition}",
            f"{shown.per_s:,.0f}",
            Text(bar(shown.per_s, largest, bar_width), style="cyan"),
            f"{shown.lag:,}",
        )
    if len(partitions) > most:
        table.add_row(f"and {len(partitions) - most} more", "", "", "")
    return table


def _gateways(gateways: tuple[GatewayView, ...], bar_width: int) -> Table:
    table = _table("gateway", "per s", "", "queue", bar_width=bar_width)
    largest = max((g.per_s for g in gateways), default=0.0)
    for shown in gateways:
        table.add_row(
            shown.name,
            f"{shown.per_s:,.0f}",
            Text(bar(shown.per_s, largest, bar_width), style="green"),
            f"{shown.depth:,}",
        )
    return table


def _table(*headings: str, bar_width: int = BAR_WIDTH) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, heading in enumerate(headings):
        is_bar = heading == ""
        table.add_column(
            heading,
            justify="left" if is_bar or index == 0 else "right",
            width=bar_width if is_bar else None,
            no_wrap=True,
        )
    return table


def _subscribers(subscribers: tuple[SubscriberView, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("subscriber", no_wrap=True)
    table.add_column("filter")
    for heading in ("matched", "delivered", "per s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for shown in subscribers:
        behind = shown.matched - shown.delivered
        table.add_row(
            shown.name,
            # Not markup: a filter has brackets.
            Text(shown.where or "(none)", style="yellow" if shown.where else "dim"),
            f"{shown.matched:,}",
            Text(f"{shown.delivered:,}", style="green" if behind == 0 else ""),
            f"{shown.per_s:,.1f}",
        )
    return table


def _consumers(consumers: tuple[ConsumerView, ...]) -> Table:
    table = _table("consumer", "targets", "received", "per s")
    table.add_column("owns", style="cyan")
    for shown in consumers:
        table.add_row(
            shown.name,
            f"{len(shown.targets)}",
            f"{shown.received:,}",
            f"{shown.per_s:,.1f}",
            _owned(shown),
        )
    return table


def _owned(consumer: ConsumerView | ConsumerSummary) -> Text:
    if consumer.left:
        return Text("has left", style="yellow")
    numbers = ", ".join(str(number) for number in consumer.targets[:TARGETS_SHOWN])
    more = len(consumer.targets) - TARGETS_SHOWN
    return Text(f"{numbers} and {more} more" if more > 0 else numbers)


def _command() -> str:
    """How this program was called, so that the hint can be copied."""
    called = Path(sys.argv[0])
    if called.name != "headgate":
        return "headgate"
    here = Path.cwd()
    return str(called.relative_to(here) if called.is_relative_to(here) else called)


def _roles(view: View) -> Columns:
    """Each role on one line, at any width."""
    states = []
    for role in view.roles:
        ready = role.pid is not None
        state = Text(f"● {role.name}", style="green" if ready else "bold red", no_wrap=True)
        states.append(state.append(f" pid {role.pid}" if ready else " restarting", style="dim"))
    return Columns(states, padding=(0, 3))


def _restarting(view: View) -> str:
    """While no router reads: that this takes, and does no harm."""
    if view.phase == "finished" or all(r.pid for r in view.roles if r.name == "router"):
        return ""
    return f"the router starts again: {SPARK_TAKES}, and nothing gets lost"


def _hints(view: View, *, wide: bool) -> RenderableType:
    """What to type: a line each, also where there is little room."""
    subscribe = f"{_command()} subscribe flights --url {view.address}"
    lines = [Text(f"{subscribe} --where 'altitude < 3000'" if wide else subscribe)]
    page = f"{view.address}{PAGE_PATH}"
    pids = {role.name: role.pid for role in view.roles}
    victim = next((name for name in VICTIMS if pids.get(name)), None)
    if victim is not None:
        others = ", or any pid above" if wide else ""
        dare = f"   # the {VICTIMS[victim]}{others}: nothing gets lost"
        lines.append(Text(f"kill -9 {pids[victim]}").append(dare, "dim"))
    where = Text("in another terminal:", style="dim")
    if not wide:
        return Group(Text(f"in a browser: {page}", style="dim"), where, *lines)
    hints = Table.grid(padding=(0, 2, 0, 0))
    hints.add_row(Text("in a browser:", style="dim"), Text(page))
    hints.add_row(where, Group(*lines))
    return hints


def line(view: View) -> str:
    """A view on one line, for a log."""
    return (
        f"{view.elapsed_s:.0f} s: produced {view.produced} ({view.produced_per_s:.0f}/s), "
        f"delivered {view.delivered} ({view.delivered_per_s:.0f}/s), "
        f"on their way {view.missing}, lag {view.lag}, "
        f"{LATENCY} {_latency(view)}, window {view.window}{_team(view.consumers)}"
        f"{''.join(f'; {said}' for said in (view.waiting, _restarting(view)) if said)}"
    )


def _team(consumers: tuple[ConsumerView, ...]) -> str:
    parts = (
        f"{one.name} {'has left' if one.left else f'owns {len(one.targets)}'} got {one.received}"
        for one in consumers
    )
    return "".join(f", {part}" for part in parts)


def summary_table(summary: Summary) -> Table:
    """What each subscriber asked for and got, or what each consumer owned and got."""
    if summary.consumers:
        return _consumer_table(summary.consumers)
    missing = "not yet" if summary.on_their_way else "lost"
    table = _table("subscriber", "matched", "delivered", missing)
    table.add_column("filter")
    for one in summary.subscribers:
        lost = one.matched - one.delivered
        table.add_row(
            one.name,
            f"{one.matched:,}",
            f"{one.delivered:,}",
            Text(f"{lost:,}", style="bold red" if lost else ""),
            Text(one.where or "(none)", style="dim"),
        )
    return table


def _consumer_table(consumers: tuple[ConsumerSummary, ...]) -> Table:
    table = _table("consumer", "targets", "received")
    table.add_column("owned at the end")
    for one in consumers:
        table.add_row(one.name, f"{len(one.targets)}", f"{one.received:,}", _owned(one))
    return table
