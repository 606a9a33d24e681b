"""Connectors one decision at a time; scenarios/connectors_*.scenario tell the stories."""

from __future__ import annotations

import msgspec
import pytest

from headgate.decide.connectors.health import advice_of
from headgate.decide.coordination.connectors.connecting import (
    SKIPPED_MAX,
    Create,
    Delete,
    Pause,
    Reset,
    Skip,
    Wish,
)
from headgate.decide.coordination.effects import Persist, Send
from headgate.decide.coordination.views.connector_status import describe_connector
from headgate.errors import ConnectorExists, InvalidRequest, NotFound, UnknownTopic
from headgate.model.connector import Connector, ConnectorReport, ConnectorRoute
from headgate.model.connectors_api import ConnectorInfo
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import ConnectorReports
from headgate.model.stored import StoredState
from headgate.model.topology import Topology
from tests.decide.coordination.world import World, ref

ORDERS = Connector(
    "orders", "mongodb", (ConnectorRoute("*", "changes"),), {"uri": "mongodb://u:${P}@db-1"}
)


class Connected(World):
    """A cluster with an ingest node, a router, a topic and a connector into it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ingest = self.join("ingest", "ingest-1")
        self.router = self.join("router", "router-1")
        self.create("changes")
        self.wish(Create(ORDERS))

    def wish(self, wish: Wish) -> None:
        self.apply(self.cluster.operate_connector(wish))

    def reports(self, state: str = "running", **fields: object) -> None:
        epoch = self.cluster.intakes.owners[ref("orders")].epoch
        given = {"name": "orders", "epoch": epoch, "state": state, **fields}
        report = ConnectorReport(**given)  # type: ignore[arg-type]
        self.say(self.ingest, ConnectorReports((report,)))

    def shown(self) -> ConnectorInfo:
        return describe_connector(self.cluster, "orders", now_ms=self.now_ms)

    @property
    def orders(self) -> Connector:
        return self.cluster.connectors["orders"]


@pytest.fixture
def world() -> Connected:
    return Connected()


# --- wishes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        (Pause("users", True), NotFound),
        (Skip("users", 0), NotFound),
        (Reset("users", "now"), NotFound),
        (Delete("users"), NotFound),
        (Skip("orders", 0), InvalidRequest),
        (
            Create(msgspec.structs.replace(ORDERS, settings={"uri": "mongodb://db-2"})),
            ConnectorExists,
        ),
        (Create(msgspec.structs.replace(ORDERS, name="users", routes=())), InvalidRequest),
        (
            Create(
                msgspec.structs.replace(ORDERS, name="u", routes=(ConnectorRoute("*", "other"),))
            ),
            UnknownTopic,
        ),
    ],
)
def test_what_is_refused_changes_nothing(
    world: Connected, wish: Wish, error: type[Exception]
) -> None:
    before = repr(world.cluster)
    with pytest.raises(error):
        world.wish(wish)
    assert repr(world.cluster) == before


def test_a_topic_without_order_takes_no_connector(world: Connected) -> None:
    world.apply(world.cluster.create_topic("drafts", 2, "opportunistic"))
    into = msgspec.structs.replace(ORDERS, name="drafts", routes=(ConnectorRoute("*", "drafts"),))
    with pytest.raises(InvalidRequest, match="name a keyed topic"):
        world.wish(Create(into))
    assert "drafts" not in world.cluster.connectors


def test_a_topic_that_a_connector_waits_for_is_not_made_anew_without_order(
    world: Connected,
) -> None:
    world.apply(world.cluster.delete_topic("changes"))
    with pytest.raises(InvalidRequest, match="connector orders feeds changes"):
        world.apply(world.cluster.create_topic("changes", 2, "opportunistic"))
    assert "changes" not in world.cluster.topics
    world.wish(Delete("orders"))
    world.apply(world.cluster.create_topic("changes", 2, "opportunistic"))
    assert world.cluster.topics["changes"].placement == "opportunistic"


def test_a_mistyped_name_is_guessed(world: Connected) -> None:
    with pytest.raises(NotFound, match="did you mean orders"):
        world.wish(Delete("order"))


@pytest.mark.parametrize("wish", [Create(ORDERS), Pause("orders", False)])
def test_what_is_so_already_is_neither_kept_nor_told(world: Connected, wish: Wish) -> None:
    assert world.cluster.operate_connector(wish) == []


def test_what_is_wished_is_kept_before_it_is_told(world: Connected) -> None:
    for wish in (Pause("orders", True), Reset("orders", "now"), Delete("orders")):
        effects = world.cluster.operate_connector(wish)
        kinds = [type(effect) for effect in effects]
        assert kinds.index(Persist) < kinds.index(Send)
        told = {effect.session for effect in effects if isinstance(effect, Send)}
        assert told == {world.ingest, world.router}


def test_only_so_many_skipped_changes_are_remembered(world: Connected) -> None:
    for number in range(SKIPPED_MAX + 5):
        world.reports("stopped", stopped_at=f"p{number:02}", stopped_what=f"change {number}")
        world.wish(Skip("orders", wall_ms=number))
    assert len(world.orders.skipped) == SKIPPED_MAX
    assert world.orders.skipped[-1].what == "change 24"
    assert world.orders.skip == "p24"


def test_skipping_the_same_change_twice_is_skipping_it_once(world: Connected) -> None:
    world.reports("stopped", stopped_at="p1", stopped_what="a change")
    world.wish(Skip("orders", wall_ms=1))
    assert world.cluster.operate_connector(Skip("orders", wall_ms=2)) == []
    assert len(world.orders.skipped) == 1


# --- what readers say ----------------------------------------------------------------------------


def test_that_something_is_stored_is_kept_once(world: Connected) -> None:
    world.reports(begun=True)
    assert world.persisted().connectors[0].begun
    assert world.last(world.ingest, from_coordinator.PushTopology).topology.connectors[0].begun
    before = len(world.effects)
    world.reports(begun=True, taken=7)
    assert len(world.effects) == before
    assert world.shown().taken == 7


@pytest.mark.parametrize("epoch", [1, 3], ids=["former", "never given out"])
def test_what_is_said_under_another_epoch_counts_for_nothing(world: Connected, epoch: int) -> None:
    world.reports(begun=True, epoch=epoch)
    assert not world.orders.begun
    assert world.shown().state == "starting"


def test_what_another_node_says_counts_for_nothing(world: Connected) -> None:
    other = world.join("ingest", "ingest-2")
    report = ConnectorReport(name="orders", epoch=2, state="running", begun=True)
    world.say(other, ConnectorReports((report,)))
    assert not world.orders.begun
    world.say(other, to_coordinator.ConnectorTooLow("orders", 9, own=2))
    assert world.cluster.intakes.owners[ref("orders")].epoch == 2


def test_a_report_from_before_a_reset_begins_nothing(world: Connected) -> None:
    late = ConnectorReport(name="orders", epoch=2, state="running", begun=True)
    world.wish(Reset("orders", "now"))
    world.say(world.ingest, ConnectorReports((late,)))
    assert not world.orders.begun


def test_a_former_reader_that_hears_of_its_successor_begins_nothing_anew(world: Connected) -> None:
    """Another node knows of the new epoch, and refuses the reader before its own node hears."""
    world.wish(Reset("orders", "now"))
    world.say(world.ingest, to_coordinator.ConnectorTooLow("orders", 3, own=2))
    assert world.cluster.intakes.owners[ref("orders")].epoch == 3
    assert world.orders.beginning == 3
    world.say(world.ingest, to_coordinator.ConnectorTooLow("orders", 3, own=3))
    assert world.cluster.intakes.owners[ref("orders")].epoch == 4


def test_how_long_a_state_lasts_is_known(world: Connected) -> None:
    world.reports("retrying", error="the database can't be reached")
    world.wait(5_000, alive=(world.ingest, world.router))
    world.reports("retrying", error="the database can't be reached")
    assert (world.shown().since_ms, world.shown().reason) == (
        5_000,
        "the database can't be reached",
    )
    world.reports("running")
    assert world.shown().since_ms == 0


# --- who reads -----------------------------------------------------------------------------------


def test_a_process_that_starts_anew_is_given_another_epoch(world: Connected) -> None:
    world.drop(world.ingest)
    again = world.join("ingest", "ingest-1", "b")
    [mine] = world.last(again, from_coordinator.PushTopology).topology.intakes
    assert (mine.node_id, mine.epoch) == ("ingest-1", 3)


def test_a_connector_of_a_deleted_ones_name_is_given_another_epoch(world: Connected) -> None:
    world.wish(Delete("orders"))
    world.wish(Create(ORDERS))
    assert (world.orders.beginning, world.shown().epoch) == (3, 4)


# --- what an operator sees -----------------------------------------------------------------------

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("history_ms", "lag_ms", "warning"),
    [
        (None, 10 * HOUR_MS, ""),
        (24 * HOUR_MS, None, ""),
        (24 * HOUR_MS, 5 * HOUR_MS, ""),
        (24 * HOUR_MS, 7 * HOUR_MS, "keeps 1 days of history, and this connector is 7 h behind"),
        (HOUR_MS // 2, 0, "keeps only 30 min of history"),
    ],
)
def test_history_that_may_not_last_is_said(
    world: Connected, history_ms: int | None, lag_ms: int | None, warning: str
) -> None:
    world.reports(history_ms=history_ms, lag_ms=lag_ms)
    shown = world.shown().warning
    assert warning in shown
    assert bool(shown) is bool(warning)


@pytest.mark.parametrize("state", ["paused", "stopped", "running"])
def test_a_quiet_position_grows_old_too(world: Connected, state: str) -> None:
    """Nothing has changed since, and still it is lost with what precedes it."""
    world.reports(state, history_ms=24 * HOUR_MS, lag_ms=0, age_ms=7 * HOUR_MS)
    if state == "paused":
        world.wish(Pause("orders", True))
    shown = world.shown().warning
    assert "this connector is 7 h behind" in shown
    assert ("connector resume orders" in shown) is (state == "paused")


def test_history_that_ran_out_during_a_pause_is_said(world: Connected) -> None:
    """Nobody reads, so nobody meets what is lost."""
    world.wish(Pause("orders", True))
    world.reports("paused", history_ms=2 * HOUR_MS, age_ms=2 * HOUR_MS)
    assert "before changes are lost" in world.shown().warning
    world.reports("paused", history_ms=2 * HOUR_MS, age_ms=3 * HOUR_MS)
    shown = world.shown()
    assert (shown.state, shown.paused) == ("paused", True)
    assert "lost already; say where to go on with `headgate connector reset" in shown.warning
    verdict, what, advice = advice_of(shown)
    assert verdict == "warn"
    assert "changes are lost already" in what
    assert "reset orders" in advice


def test_a_pause_hides_no_history_that_is_lost(world: Connected) -> None:
    world.wish(Pause("orders", True))
    world.reports("history-lost", stopped_at="p7", error="error 286")
    assert world.shown().state == "history-lost"
    assert advice_of(world.shown())[0] == "bad"
    world.wish(Reset("orders", "now"))
    world.reports("paused")
    assert world.shown().state == "paused"


def test_what_only_an_operator_can_mend_says_how(world: Connected) -> None:
    world.reports("history-lost", stopped_at="p7", error="error 286")
    assert world.shown().reason == (
        "the origin no longer has the changes behind p7 (error 286); say where to go on with "
        "`headgate connector reset orders --to now`"
    )
    world.reports("stopped", stopped_at="p8", stopped_what="a document of 20 MB")
    assert world.shown().reason == (
        "it can't take a document of 20 MB at p8; leave that one out with `headgate connector "
        "skip orders`"
    )
    world.wish(Pause("orders", True))
    assert world.shown().state == "stopped"


@pytest.mark.parametrize(("state", "how"), [("history-lost", "reset"), ("stopped", "skip")])
def test_what_to_do_is_said_once(world: Connected, state: str, how: str) -> None:
    """Its reader says so in its own log, too."""
    error = f"it is too large; see to it; say so with `headgate connector {how} orders`"
    world.reports(state, stopped_at="p7", stopped_what="x", error=error)
    assert "(it is too large; see to it); " in world.shown().reason
    assert world.shown().reason.count("headgate connector") == 1


def test_what_is_refused_as_a_whole_is_nothing_to_skip(world: Connected) -> None:
    world.reports("stopped", error="reader may not read shop")
    assert world.shown().reason == ("reader may not read shop; mend that, and it goes on by itself")
    with pytest.raises(InvalidRequest, match="hasn't stopped at a change"):
        world.wish(Skip("orders", wall_ms=1))


def test_settings_are_shown_as_they_were_written(world: Connected) -> None:
    assert world.shown().settings == {"uri": "mongodb://u:${P}@db-1"}


# --- what is kept --------------------------------------------------------------------------------


def test_what_an_older_coordinator_kept_can_be_read() -> None:
    kept = msgspec.to_builtins(World().cluster.to_store())
    del kept["connectors"], kept["intakes"]
    stored = msgspec.convert(kept, StoredState)
    assert World(stored).cluster.connectors == {}


def test_the_topology_carries_all_it_takes_to_learn_it_again(world: Connected) -> None:
    told = world.last(world.router, from_coordinator.PushTopology).topology
    assert told.connectors == (world.orders,)
    assert told.intakes == world.cluster.intakes.all()
    again = msgspec.json.decode(msgspec.json.encode(told), type=Topology)
    assert again == told
