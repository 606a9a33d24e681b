"""The screen of `headgate top`: figures and what needs attention above, tables below, on keys.

Invariants: whatever is shown came from the last look that was answered, and the screen says so when
the next one isn't; a table that has the same rows keeps its cursor and its place; no look waits for
the one before it, and none holds up a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from headgate.cli.views.top import (
    COLUMNS,
    Moments,
    Row,
    attention,
    figures,
    headline,
    rows,
    under_way,
)
from headgate.errors import HeadgateError, NotNow
from headgate.model.api import TopicInfo
from headgate.model.overview_api import Overview

LookAtAll = Callable[[], Awaitable[Overview]]
LookAtTopic = Callable[[str], Awaitable[TopicInfo]]


class TopScreen(App[None]):
    """`at_all` and `at_topic` look; `seen` is what the first look saw."""

    TITLE = "headgate top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #said { height: auto; max-height: 40%; padding: 0 1; }
    #said Static { height: auto; margin-bottom: 1; }
    TabbedContent { height: 1fr; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(place), f"show('{name}')", name.capitalize())
            for place, name in enumerate(COLUMNS, 1)
        ),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(
        self,
        at_all: LookAtAll,
        at_topic: LookAtTopic,
        seen: Overview,
        *,
        url: str,
        every_s: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._at_all, self._at_topic = at_all, at_topic
        self._url, self._every_s, self._clock = url, every_s, clock
        self._seen = seen
        self._topic: TopicInfo | None = None
        self._topic_name = seen.topics[0].name if seen.topics else ""
        self._moments = Moments()
        self._moments.add(seen, clock())
        self._trouble = ""

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="said", can_focus=False):
            for part in ("headline", "figures", "under-way", "attention"):
                yield Static(id=part, markup=False)
        with TabbedContent(initial="tab-topics"):
            for name in COLUMNS:
                with TabPane(name.capitalize(), id=f"tab-{name}"):
                    yield DataTable[Text](id=name, cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in COLUMNS.items():
            self._table(name).add_columns(*columns)
        self._draw()
        self._table("topics").focus()
        self.run_worker(self._look_on(), name="looking")

    # --- what somebody does ----------------------------------------------------------------------

    def action_show(self, name: str) -> None:
        self.query_one(TabbedContent).active = f"tab-{name}"
        self._table(name).focus()

    async def on_data_table_row_selected(self, chosen: DataTable.RowSelected) -> None:
        """Enter on a topic leads to its partitions."""
        if chosen.data_table.id != "topics" or chosen.row_key.value is None:
            return
        self._topic_name, self._topic = chosen.row_key.value, None
        self.action_show("partitions")
        self.run_worker(self._look(), name="at a topic", group="topic", exclusive=True)

    # --- looks -----------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._look()

    async def _look(self) -> None:
        try:
            self._seen = await self._at_all()
            self._moments.add(self._seen, self._clock())
            await self._look_at_topic()
        except (HeadgateError, TimeoutError) as error:
            self._trouble = error.message if isinstance(error, HeadgateError) else "no answer"
        else:
            self._trouble = ""
        self._draw()

    async def _look_at_topic(self) -> None:
        """Only while its partitions are shown: there may be a thousand of them."""
        names = [one.name for one in self._seen.topics]
        if self._topic_name not in names:
            self._topic_name, self._topic = names[0] if names else "", None
        if self._is_gone() or not self._topic_name:
            return
        if self.query_one(TabbedContent).active != "tab-partitions":
            return
        name = self._topic_name
        try:
            found = await self._at_topic(name)
        except NotNow:
            raise
        except HeadgateError:
            found = None  # Deleted since, or not ours to see.
        if name == self._topic_name:
            self._topic = found

    # --- drawing ---------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._is_gone():
            return
        seen = self._seen
        self._say("headline", headline(seen, self._url, self._trouble))
        self._say("attention", attention(seen.attention, seen.left_out.get("attention", 0)))
        self._say("figures", figures(seen, self._moments))
        self._say("under-way", under_way(seen))
        for name in COLUMNS:
            _fill(self._table(name), rows(name, seen, self._topic))
        tab = self.query_one(TabbedContent).get_tab("tab-partitions")
        tab.label = f"Partitions of {self._topic_name}" if self._topic_name else "Partitions"

    def _is_gone(self) -> bool:
        """A look may be answered while the screen is being taken down."""
        return not self.query("#headline") or not self.query(TabbedContent)

    def _say(self, name: str, text: Text) -> None:
        static = self.query_one(f"#{name}", Static)
        static.update(text)
        static.display = bool(text)

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)


def _fill(table: DataTable[Text], wanted: Sequence[Row]) -> None:
    """Cells in place where the rows are the same, so that nothing jumps."""
    if [key.value for key in table.rows] != [key for key, _ in wanted]:
        keys = [key.value for key in table.rows]
        at = table.cursor_row
        chosen = keys[at] if at < len(keys) else None
        table.clear()
        for key, cells in wanted:
            table.add_row(*cells, key=key)
        now = [key for key, _ in wanted]
        table.move_cursor(row=now.index(chosen) if chosen in now else at, animate=False)
        return
    for at, (_, cells) in enumerate(wanted):
        shown = table.get_row_at(at)
        for column, cell in enumerate(cells):
            if shown[column] != cell or shown[column].style != cell.style:
                table.update_cell_at(Coordinate(at, column), cell, update_width=True)
