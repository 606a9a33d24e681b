"""How tables, numbers, times and partitions look in a terminal. Only shapes what it's given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod
from rich.table import Table
from rich.text import Text

from headgate.model.api import TopicInfo, TopicPartition

LATE_MS = 30_000
"""Lag in time from which a partition is shown in red: the threshold of the health states."""
RANGES_SHOWN_MAX = 4
BETWEEN = 2
"""Blanks between two columns."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table without lines, which leaves out what a narrow terminal has no room for.

    A column whose name ends with `>` is aligned to the right; one that begins with `?` gives way,
    the last one first. A single row that still doesn't fit goes on below; what doesn't fit of
    several is folded. Headings stay whole, and nothing is cut off.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        shown = list(range(len(self.columns)))
        while self._width(shown) > options.max_width:
            giving_way = [index for index in shown if self.columns[index].startswith("?")]
            if not giving_way:
                break
            shown.remove(giving_way[-1])
        if len(self.rows) == 1:
            yield from (self._table(part) for part in self._below(shown, options.max_width))
        else:
            others_width = self._width(shown[1:]) + BETWEEN if len(shown) > 1 else 0
            yield self._table(shown, options.max_width - others_width)

    def _below(self, shown: Sequence[int], width: int) -> Iterator[list[int]]:
        """As many columns as fit beside each other, then the next ones."""
        part: list[int] = []
        for index in shown:
            if part and self._width([*part, index]) > width:
                yield part
                part = []
            part.append(index)
        yield part

    def _width(self, shown: Sequence[int]) -> int:
        widths = (
            max(cell_len(str(cell)) for cell in (self._name(i), *(row[i] for row in self.rows)))
            for i in shown
        )
        return sum(widths) + BETWEEN * (len(shown) - 1)

    def _name(self, index: int) -> str:
        return self.columns[index].removeprefix("?").removesuffix(">")

    def _table(self, shown: Sequence[int], first_width: int | None = None) -> Table:
        """The first column folds, at `first_width`, as long as that leaves its heading whole."""
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, BETWEEN, 0, 0))
        for index in shown:
            name = self._name(index)
            justify: JustifyMethod = "right" if self.columns[index].endswith(">") else "left"
            fits = first_width is not None and first_width >= len(name)
            most = first_width if fits and index == shown[0] else None
            table.add_column(name, justify=justify, overflow="fold", max_width=most)
        for row in self.rows:
            table.add_row(*(row[index] for index in shown))
        return table


def topics_table(topics: Sequence[TopicInfo]) -> Grid:
    """One row per topic; its partitions are added up, and the latest of them counts."""
    is_any_under_way = any(topic.repartition is not None for topic in topics)
    under_way = ("repartition",) if is_any_under_way else ()
    columns = ("lag>", "behind>", "?rate>", "?adopted>", "?records>", "?placement", "?version>")
    rows = [
        (
            topic.name,
            number(topic.partitions),
            *((_under_way(topic),) if is_any_under_way else ()),
            number(sum(one.lag for one in topic.details)),
            behind(topic.details),
            rate(sum(one.rate for one in topic.details)),
            counted(topic.adopted) if topic.adopted else "-",
            number(sum(one.head for one in topic.details)),
            topic.placement,
            str(topic.version),
        )
        for topic in topics
    ]
    return Grid(("topic", "partitions>", *under_way, *columns), rows)


def _under_way(topic: TopicInfo) -> str:
    found = topic.repartition
    return f"to {found.to:,}: {found.phase}" if found is not None else "-"


def partitions_table(partitions: Iterable[tuple[TopicInfo, TopicPartition]]) -> Grid:
    """One row per partition of the topics."""
    columns = ("partition", "log owner (epoch)", "router (epoch)", "lag>", "behind>", "?head>")
    rows = [
        (
            f"{topic.name}:{one.partition}{_closed(topic, one)}",
            _owner(one.owner, one.log_epoch),
            _owner(one.router, one.epoch),
            number(one.lag),
            behind([one]),
            number(one.head),
            rate(one.rate),
            number(one.settled),
        )
        for topic, one in partitions
    ]
    return Grid((*columns, "?rate>", "?settled>"), rows)


def _closed(topic: TopicInfo, one: TopicPartition) -> str:
    """What is to be known of a partition that takes no records yet, or none any more."""
    if one.partition < topic.partitions:
        return ""
    coming = topic.repartition
    if coming is not None and one.partition < coming.to:
        return " (to come)"  # Behind the fence the topic has as many as it goes to.
    return " (retiring)" if one.lag else " (read-only)"


def _owner(node_id: str | None, epoch: int) -> Text:
    return Text(f"{node_id} ({epoch})") if node_id else Text("nobody", style="red")


def behind(partitions: Sequence[TopicPartition]) -> Text:
    """The age of the oldest record of all that isn't settled, or what it is at least."""
    waiting = [one for one in partitions if one.lag]
    lag_ms = max((one.lag_ms for one in waiting), default=None)
    if lag_ms is None:
        return Text("-")
    at_least = "" if all(one.lag_known for one in waiting) else "\u2265 "
    return Text(at_least + duration(lag_ms), style="red" if lag_ms > LATE_MS else "")


def counted(value: int) -> str:
    """A generation or revision as people can compare it: the coordinator's start, and its count."""
    return f"{value >> 32}.{value & 0xFFFF_FFFF}"


def number(value: int) -> str:
    return f"{value:,}"


def rate(per_s: float) -> str:
    return f"{per_s:,.0f}/s" if per_s >= 0.5 else "-"


def share(part: float) -> str:
    return f"{part:.0%}"


def duration(ms: int) -> str:
    if ms < 1_000:
        return f"{ms} ms"
    return f"{ms / 1_000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def named(partitions: Iterable[tuple[str, int]]) -> str:
    """Partitions in as few words as they can be named: `flights:0-3,7 trips:1`."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    pieces: list[tuple[str, list[int]]] = [
        (topic, one) for topic, numbers in by_topic.items() for one in _runs(numbers)
    ]
    shown: dict[str, list[str]] = {}
    for topic, run in pieces[:RANGES_SHOWN_MAX]:
        text = str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
        shown.setdefault(topic, []).append(text)
    words = [f"{topic}:{','.join(runs)}" for topic, runs in shown.items()]
    if more := sum(len(run) for _, run in pieces[RANGES_SHOWN_MAX:]):
        words.append(f"and {more:,} more")
    return " ".join(words)


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for one in numbers:
        if runs and runs[-1][-1] == one - 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs
