"""The dashboard in a real browser: every page, and everything that can be done there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from msgspec.structs import replace

from headgate.adapters.web_files import packaged_files
from headgate.decide.console import looks
from headgate.model import api
from headgate.model.http import Request, Response
from headgate.services.gateway.public import watching
from tests.browser.console_stage import Console, Dashboard, serving
from tests.services.gateway.access import secret_of, token

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

PAGES = (
    "overview",
    "topology",
    "topics",
    "topics/flights",
    "topics/flights/records",
    "subscriptions",
    "groups/flights/radar",
    "letters",
    "nodes",
    "connectors",
)


@pytest_asyncio.fixture(loop_scope="session")
async def console(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Console]:
    monkeypatch.setattr(watching, "pause_s", lambda _took_s: 0.05)
    async with serving() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def tab(page: Page, console: Console) -> Dashboard:
    page.set_default_timeout(10_000)
    return Dashboard(page, console)


# --- overview, and the line to the gateway ------------------------------------------------------


async def test_what_is_worst_stands_first_with_what_to_do(tab: Dashboard) -> None:
    nodes = [one for one in tab.console.status.nodes if one.role != "router"]
    tab.console.status = replace(tab.console.status, nodes=nodes)
    await tab.see("overview")
    first = tab.page.locator(".attention li").first
    await first.get_by_text("router").first.wait_for()
    assert "start one with headgate router" in await first.inner_text()
    assert await first.locator("code").first.inner_text() == "headgate router"
    await tab.shows("degraded")
    await tab.shows("200 appended = 180 settled + 20 waiting")
    await tab.shows("adds up")


async def test_one_line_for_all_tabs_of_a_browser(tab: Dashboard) -> None:
    await tab.see("overview")
    more = [await tab.page.context.new_page() for _ in range(3)]
    for one in more:
        await Dashboard(one, tab.console).see("nodes")
    assert len(tab.console.watching._watchers) == 1
    await tab.page.close()
    await Dashboard(more[0], tab.console).see("topology")
    assert len(tab.console.watching._watchers) == 1


async def test_it_says_that_it_is_not_connected_and_recovers_by_itself(tab: Dashboard) -> None:
    await tab.see("overview")
    await tab.page.evaluate("window.before = true")
    await tab.console.go_away()
    banner = tab.page.locator("#banner")
    await banner.get_by_text("Not connected since").wait_for()
    assert "What you see is from" in await banner.inner_text()
    await tab.page.locator("#link", has_text="not connected").wait_for()
    tab.console.status = replace(tab.console.status, leader="coordinator-9")
    await tab.console.begin()
    await tab.page.locator("#link", has_text="live").wait_for()
    await banner.wait_for(state="hidden")
    await tab.page.goto(f"{tab.console.url}/ui/#/nodes")
    await tab.shows("coordinator-9 leads")
    assert await tab.page.evaluate("window.before")


async def test_it_says_that_the_coordinator_is_away(tab: Dashboard) -> None:
    await tab.see("overview")

    async def away(_request: object) -> None:
        raise ValueError("nobody can tell")

    tab.console._overview = away  # type: ignore[assignment,method-assign]
    await tab.console.go_away()
    await tab.console.begin()
    await tab.page.locator("#link", has_text="coordinator away").wait_for()
    assert "What you see is from" in await tab.page.locator("#banner").inner_text()


async def test_a_picture_shows_how_records_flow(tab: Dashboard) -> None:
    await tab.see("topology")
    boxes = tab.page.locator(".topology .box")
    await boxes.filter(has_text="router-1 / 0").wait_for()
    texts = " ".join(await boxes.all_text_contents())
    for name in ("ingest-1", "flights", "wide", "gateway-1", "4 subscribers"):
        assert name in texts
    assert "50" in await tab.page.get_by_role("row", name="flights router-1 / 0").inner_text()
    move = api.MoveStatus("flights", 1, "router-1", "router-2", "starting", 900)
    tab.console.status = replace(tab.console.status, moves=[move])
    await tab.shows("flights:1 from router-1 to router-2")


RATE = """() => [...document.querySelectorAll("main tr")].some(
  ({ cells }) => cells[0].textContent === "router-1 / 0" && Number(cells[2].textContent) > 0,
)"""


async def test_what_a_lane_passes_on_is_seen_while_its_successor_is_there(tab: Dashboard) -> None:
    """A window changes: the next one's lanes have the same numbers, and nothing to do yet."""
    answer, passed = tab.console._overview, 170

    async def grown(request: Request) -> Response:
        nonlocal passed
        passed += 1
        tab.console.machine.passes(1.0)
        [lane] = [one for one in tab.console.status.lanes if one.window == 1]
        links = [replace(lane.links[0], acknowledged=passed)]
        successor = replace(lane, window=2, links=[replace(lane.links[0], acknowledged=0)])
        lanes = [replace(lane, links=links), successor]
        tab.console.status = replace(tab.console.status, lanes=lanes)
        return await answer(request)

    tab.console._overview = grown  # type: ignore[assignment, method-assign]
    await tab.console.go_away()
    await tab.console.begin()
    await tab.see("topology")
    await tab.page.wait_for_function(RATE)


# --- topics and their records -------------------------------------------------------------------


async def test_a_topic_is_found_and_repartitioned_after_a_look_at_what_it_means(
    tab: Dashboard,
) -> None:
    await tab.see("topics")
    await tab.page.get_by_label("Search topics").fill("fli")
    await tab.rows().filter(has_text="wide").wait_for(state="detached")
    await tab.rows().filter(has_text="flights").click()
    await tab.shows("At a glance")
    await tab.button("Change the number of partitions…").click()
    await tab.shows("50\u202f% of all keys change their partition.")
    await tab.page.get_by_label("Partitions (now 2)").fill("6")
    await tab.shows("2 → 6 partitions.")
    await tab.shows("of 2 for those of 0")
    assert tab.console.done == []
    assert "It has begun" in await tab.confirm("Repartition")
    assert tab.console.done == [("POST /v1/topics/flights/repartition", {"partitions": 6})]


async def test_a_thousand_partitions_have_a_few_rows(tab: Dashboard) -> None:
    await tab.see("topics/wide")
    await tab.rows().first.wait_for()
    assert await tab.rows().count() < 60
    await tab.page.locator(".virtual").focus()
    await tab.page.keyboard.press("End")
    await tab.rows().filter(has_text="999").wait_for()
    assert await tab.page.locator(".virtual").get_attribute("aria-rowcount") == "1001"


async def test_records_are_looked_at_from_anywhere_and_by_anything(tab: Dashboard) -> None:
    for n in range(300):
        tab.console.log.append({"n": n}, partition=n % 2, key=f"k{n % 3}", time_ms=1_000 * n)
    await tab.see("topics/flights/records")
    rows, begin = tab.rows(), tab.page.get_by_label("Begin")
    await rows.filter(has_text='{"n":299}').wait_for()
    await tab.shows("200 records, 200 looked at just now; there is more")
    await tab.button("More").click()
    await tab.shows("300 records, 100 looked at just now; that is all there is")
    await begin.select_option("earliest")
    await rows.filter(has_text='{"n":0}').wait_for()
    await tab.page.get_by_label("Only where (CEL)").fill("n > 290 && n % 2 == 1")
    await tab.page.get_by_label("Key").fill("k0")
    await tab.button("Look").click()
    await rows.filter(has_text='{"n":291}').wait_for()
    assert await rows.all_inner_texts() != []
    assert await rows.count() == 2
    assert "where=n+%3E+290" in tab.page.url
    await tab.page.reload()
    await rows.filter(has_text='{"n":297}').wait_for()
    await tab.see("topics/flights/records?start=position&position=0:149,1:200")
    await rows.filter(has_text='{"n":298}').wait_for()
    assert await rows.count() == 2
    await tab.see("topics/flights/records?start=time&time=1970-01-01T00:04:57&partition=1")
    await rows.filter(has_text='{"n":299}').wait_for()


async def test_a_filter_that_is_wrong_says_where(tab: Dashboard) -> None:
    await tab.see("topics/flights/records")
    await tab.page.get_by_label("Only where (CEL)").fill("n > =")
    await tab.button("Look").click()
    await tab.page.get_by_role("alert").get_by_text("The filter is wrong at column 5").wait_for()


async def test_what_comes_from_now_on_is_seen_as_it_comes(tab: Dashboard) -> None:
    tab.console.log.append({"n": "old"})
    await tab.see("topics/flights/records?start=live")
    await tab.shows("waiting for")
    tab.console.log.append({"n": "new"}, partition=1)
    await tab.rows().filter(has_text="new").wait_for()
    assert await tab.rows().count() == 1
    await tab.button("Pause").click()
    await tab.button("Go on").click()
    tab.console.log.append({"n": "newer"})
    await tab.rows().filter(has_text="newer").wait_for()


async def test_whatever_a_document_has_in_it_is_text_and_bounded(tab: Dashboard) -> None:
    append = tab.console.log.append
    append({"html": "<img src=x onerror=hurt()><script>hurt()</script>", "secret": "hush"})
    append({"bidi": "a\u202eb\u0000"}, key="<b>\u2066", headers={"trace": "<i>t</i>"})
    append(b'{"big": 12345678901234567890, "text": "%s"}' % (b"x" * 1_000_000))
    append({f"field{n}": n for n in range(10_000)})
    await tab.page.add_init_script("window.hurt = () => { window.isHurt = true; }")
    await tab.see("topics/flights/records?start=earliest")
    dialog = tab.page.locator("dialog")
    await tab.rows().filter(has_text="<img").click()
    await dialog.get_by_text('"<img src=x onerror=hurt()>').wait_for()
    assert "hush" not in await tab.page.locator("body").inner_text()
    await dialog.get_by_text("next row →").click()
    await dialog.get_by_text('"a\\u202eb\\u0000"').wait_for()
    assert "<b>\\u2066" in await dialog.inner_text()
    assert "<i>t</i>" in await dialog.inner_text()
    await dialog.get_by_text("next row →").click()
    await dialog.get_by_text("12345678901234567890").wait_for()
    assert len(await dialog.inner_text()) < 5_000
    await dialog.get_by_role("button", name="show 20,000 of 1,000,000 characters").click()
    assert 20_000 < len(await dialog.inner_text()) < 25_000
    await dialog.get_by_text("next row →").click()
    await dialog.get_by_text("10,000 fields").wait_for()
    assert await dialog.locator(".json-entry").count() == 100
    await dialog.get_by_role("button", name="show 100 more of 9,900").click()
    assert await dialog.locator(".json-entry").count() == 200
    assert await tab.page.evaluate("window.isHurt") is None
    assert await tab.page.locator("main img, dialog img, main script").count() == 0


HELD = """async ([count, size, keepsFirst]) => {
  const { held } = await import("/ui/pages/records.js");
  const records = Array.from({ length: count }, (_, n) => ({ n, size_bytes: size }));
  const kept = held(records, keepsFirst);
  return [kept.length, kept[0]?.n, kept.at(-1)?.n];
}"""


async def test_records_are_held_by_number_and_by_bytes(tab: Dashboard) -> None:
    await tab.see("topics/flights/records")
    cases = [
        ([100, 1_000, True], [100, 0, 99]),
        ([9_000, 100, True], [5_000, 0, 4_999]),
        ([9_000, 100, False], [5_000, 4_000, 8_999]),
        ([200, 1_000_000, True], [50, 0, 49]),
        ([200, 1_000_000, False], [50, 150, 199]),
        ([3, 90_000_000, True], [1, 0, 0]),
    ]
    for asked, kept in cases:
        assert await tab.page.evaluate(HELD, asked) == kept


async def test_what_can_not_be_read_is_named_once(tab: Dashboard) -> None:
    tab.console.log.append({"n": 1})
    tab.console.log.append({"n": 2})
    gone = {"partition": 0, "first": 1, "last": 7, "why": "gone"}

    async def answer(route: Route) -> None:
        answer = await route.fetch()
        body = await answer.json()
        await route.fulfill(response=answer, json={**body, "missing": [gone]})

    await tab.page.route("**/v1/topics/flights/records?*", answer)
    await tab.see("topics/flights/records?start=live")
    await tab.shows("flights:0:1 to 7: not there any more (retention).")
    for n in range(3):
        tab.console.log.append({"n": f"new {n}"})
        await tab.rows().filter(has_text=f"new {n}").wait_for()
    assert await tab.page.locator(".gaps li").count() == 1


async def test_a_record_is_explained(tab: Dashboard) -> None:
    tab.console.log.append({"n": 1})
    await tab.see("topics/flights/records")
    await tab.rows().first.click()
    await tab.button("Who got it, and why?").click()
    await tab.shows("it is settled: unmatched")
    await tab.page.get_by_text("n > 5 doesn't hold").click()
    await tab.shows("n is 1")
    await tab.shows("A lane began anew.")


async def test_a_dialog_goes_with_the_page_that_it_belongs_to(tab: Dashboard) -> None:
    tab.console.log.append({"n": 1})
    await tab.see("nodes")
    await tab.see("topics/flights/records")
    await tab.rows().first.click()
    await tab.page.locator("dialog").get_by_text("flights:0:1").wait_for()
    await tab.page.go_back()
    await tab.page.locator("main h1", has_text="Nodes").wait_for()
    assert await tab.page.locator("dialog").count() == 0


# --- letters ------------------------------------------------------------------------------------


async def test_letters_are_sent_again_and_deleted_once_that_is_confirmed(tab: Dashboard) -> None:
    for seq in range(1, 251):
        reason = "shed" if seq > 245 else "rejected"
        await tab.console.letter(seq, error="<script>hurt()</script>", reason=reason)
    stored = tab.console.letters.stored.letters
    await tab.see("letters")
    await tab.shows("200 letters, and there are more")
    await tab.button("More").click()
    await tab.shows("250 letters")
    await tab.rows().first.locator("input").check()
    await tab.button("Delete chosen…").click()
    await tab.shows("1 dead letter (chosen ones) will be gone for good")
    assert len(stored) == 250
    assert await tab.confirm("Delete for good") == "1 letter deleted."
    assert len(stored) == 249
    await tab.page.get_by_label("Reason").select_option("shed")
    await tab.shows("5 letters")
    await tab.button("Delete all of these…").click()
    await tab.shows("5 dead letters (those with reason shed)")
    assert await tab.confirm("Delete for good") == "5 letters deleted."
    await tab.page.get_by_label("Reason").select_option("")
    await tab.button("Send all of these again…").click()
    await tab.shows("244 dead letters (every dead letter there is)")
    assert await tab.confirm("Send again") == "244 letters sent again: 244 delivered."
    assert stored == {}
    await tab.shows("There are none of these.")


async def test_a_letter_is_opened(tab: Dashboard) -> None:
    await tab.console.letter(7)
    await tab.see("letters")
    await tab.rows().first.click()
    dialog = tab.page.locator("dialog")
    await dialog.get_by_text("flights:0:7").wait_for()
    assert "400: no" in await dialog.inner_text()
    await dialog.get_by_role("button", name="Send it again…").click()
    assert "1 delivered" in await tab.confirm("Send again")


# --- nodes, subscriptions, connectors -----------------------------------------------------------


async def test_nodes_are_drained_taken_back_and_restarted(tab: Dashboard) -> None:
    await tab.see("nodes")
    row = tab.page.get_by_role("row", name="ingest-1")
    await row.get_by_role("button", name="Drain…").click()
    await tab.shows("ingest-1 gives its 2 partitions to others")
    assert "It has begun" in await tab.confirm("Drain it")
    other = tab.page.get_by_role("row", name="ingest-2")
    await other.get_by_role("button", name="Take back…").click()
    await tab.confirm("Take it back")
    await tab.page.get_by_role("row", name="router-1 router").get_by_text("Restart…").click()
    await tab.confirm("Restart it")
    assert [what for what, _ in tab.console.done] == [
        "POST /v1/nodes/ingest-1/drain",
        "DELETE /v1/nodes/ingest-2/drain",
        "POST /v1/nodes/router-1/restart",
    ]


async def test_a_plan_is_shown_before_it_is_carried_out(tab: Dashboard) -> None:
    await tab.see("nodes")
    await tab.button("Rebalance…").click()
    await tab.shows("log flights:1: ingest-1 → ingest-2")
    await tab.page.locator("dialog").get_by_role("button", name="Cancel").click()
    assert tab.console.done == []
    await tab.button("Rebalance…").click()
    assert await tab.confirm("Carry it out") == "1 move under way."
    tab.console.planned = []
    await tab.button("Rebalance…").click()
    await tab.shows("nothing would move")
    assert await tab.button("Carry it out").is_disabled()


async def test_settings_are_shown_with_their_origins(tab: Dashboard) -> None:
    await tab.see("nodes")
    await tab.shows("300 settings, of which 2 aren't the default")
    assert await tab.rows().count() < 60
    await tab.page.get_by_label("only what somebody has set").check()
    await tab.rows().filter(has_text="file headgate.yaml").wait_for()
    assert await tab.rows().count() == 2
    await tab.rows().first.click()
    await tab.page.locator("dialog").get_by_text("file headgate.yaml").wait_for()
    await tab.page.keyboard.press("Escape")
    await tab.page.locator("select[name=node]").select_option("router-1")
    named = tab.rows().filter(has_text="section.name")
    await named.filter(has_text="router-1").wait_for()
    await tab.page.get_by_label("Search", exact=True).fill("name")
    await tab.rows().filter(has_text="key7").wait_for(state="detached")
    assert await tab.rows().count() == 1


async def test_a_hundred_thousand_subscriptions_are_searched(tab: Dashboard) -> None:
    await tab.see("subscriptions")
    await tab.shows("100,000 subscriptions")
    await tab.rows().filter(has_text="altitude > 3").first.wait_for()
    await tab.page.locator(".virtual").focus()
    await tab.page.keyboard.press("End")
    await tab.rows().filter(has_text="altitude > 99999").wait_for()
    assert await tab.rows().count() < 60
    await tab.page.get_by_label("Search subscriptions").fill("> 4242")
    await tab.shows("11 of 100,000 subscriptions")
    slow = tab.page.get_by_role("row", name="lazy flights gateway-1 900")
    await slow.get_by_text("catches up from the log").wait_for()
    await tab.shows("radar")
    await tab.shows("1 target without a consumer")
    await tab.shows("a && b")


async def test_a_connector_leaves_out_rests_goes_on_and_begins_elsewhere(tab: Dashboard) -> None:
    await tab.see("connectors")
    await tab.button("Leave that change out…").click()
    await tab.confirm("Leave it out")
    await tab.button("Pause…").click()
    assert await tab.confirm("Pause") == "It is paused now."
    await tab.button("Resume…").click()
    await tab.confirm("Resume")
    await tab.button("Begin elsewhere…").click()
    await tab.page.get_by_label("Begin at").fill("2026-01-31T12:00:00Z")
    await tab.confirm("Begin there")
    assert tab.console.done == [
        ("POST /v1/connectors/orders/skip", {"position": "0/16B3748"}),
        ("POST /v1/connectors/orders/pause", None),
        ("POST /v1/connectors/orders/resume", None),
        ("POST /v1/connectors/orders/reset", {"to": "2026-01-31T12:00:00Z"}),
    ]


async def test_a_connector_takes_a_snapshot_and_ends_it(tab: Dashboard) -> None:
    await tab.see("connectors")
    await tab.button("Take a snapshot…").click()
    await tab.shows("What all that it reads holds is read beside the changes")
    await tab.page.get_by_label("Only").fill("public.a, public.b")
    await tab.shows("What public.a, public.b holds is read")
    assert "It is asked for" in await tab.confirm("Take it")
    await tab.shows("everything: 7 rows, in public.a (0 of 2 done)")
    await tab.button("End the snapshots…").click()
    assert await tab.confirm("End them") == "It reads changes alone."
    await tab.button("End the snapshots…").wait_for(state="detached")
    assert tab.console.done == [
        ("POST /v1/connectors/orders/snapshot", {"collections": ["public.a", "public.b"]}),
        ("DELETE /v1/connectors/orders/snapshot", None),
    ]


async def test_a_group_is_described_and_begins_elsewhere_after_a_look_at_what_it_means(
    tab: Dashboard,
) -> None:
    await tab.see("subscriptions")
    await tab.page.get_by_role("link", name="radar").click()
    await tab.shows("4, 1 without a consumer")
    await tab.shows("nobody")
    positions = tab.page.get_by_role("grid", name="Committed positions of radar")
    await positions.get_by_text("900", exact=True).first.wait_for()
    assert await positions.get_attribute("aria-rowcount") == "1001"
    assert await tab.rows().count() < 60
    await tab.button("Begin elsewhere…").click()
    await tab.shows("Up to 100 records will never be handed out")
    await tab.page.get_by_label("It begins").select_option("earliest")
    await tab.shows("Up to 900 records will be handed out again")
    await tab.shows("partition 0: from 901 to 1")
    await tab.page.get_by_label("It begins").select_option("time")
    await tab.shows("Say since when.")
    assert await tab.button("Begin there").is_disabled()
    await tab.page.locator("dialog input[name=time]").fill("2026-01-31T12:00")
    await tab.shows("partition 0: from 901 to 1")
    assert tab.console.done == []
    assert await tab.confirm("Begin there") == "It begins there in 1 partition."
    [(what, body)] = tab.console.done
    assert what == "POST /v1/groups/flights/radar/reset"
    assert body == {"to": await tab.page.evaluate("new Date('2026-01-31T12:00').toISOString()")}
    await positions.focus()
    await tab.page.keyboard.press("Enter")
    await tab.page.wait_for_url("**/#/topics/flights/records?partition=0")


# --- who may ------------------------------------------------------------------------------------


async def log_in(page: Page, console: Console, name: str) -> None:
    await page.get_by_label("Token").fill(secret_of(name))
    await page.get_by_role("button", name="Log in").click()
    await page.locator("#link", has_text="live").wait_for()


async def test_whoever_is_logged_in_sees_and_does_what_they_may(page: Page) -> None:
    page.set_default_timeout(10_000)
    looker, admin = token("looker", "read:nodes", "read:topics"), token("boss", "admin")
    async with serving(looker, admin) as console:
        await page.goto(f"{console.url}/ui/#/nodes")
        await page.get_by_label("Token").fill("hg_wrong")
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_text("Nobody has that token, or it isn't valid any more").wait_for()
        await log_in(page, console, "looker")
        row = page.get_by_role("row", name="ingest-1")
        await row.wait_for()
        assert await row.get_by_role("button").count() == 0
        assert await page.get_by_role("button", name="Rebalance…").count() == 0
        assert await page.evaluate("document.cookie") == ""
        await page.get_by_role("button", name="log out looker").click()
        await log_in(page, console, "boss")
        tab = Dashboard(page, console)
        await row.get_by_role("button", name="Restart…").click()
        await tab.confirm("Restart it")
        assert console.done == [("POST /v1/nodes/ingest-1/restart", None)]


async def test_who_may_not_see_how_the_system_fares_is_told_that_and_not_that_it_is_away(
    page: Page,
) -> None:
    page.set_default_timeout(10_000)
    async with serving(token("reader", "subscribe on flights")) as console:
        await page.goto(f"{console.url}/ui/#/connectors")
        await page.get_by_label("Token").fill(secret_of("reader"))
        await page.get_by_role("button", name="Log in").click()
        await page.locator("#link", has_text="not granted").wait_for()
        await page.get_by_text("You can't see how the system fares").wait_for()
        assert await page.get_by_text("There are no connectors").is_hidden(), "nobody knows"


async def test_a_log_in_begins_and_ends_in_every_tab(page: Page) -> None:
    page.set_default_timeout(10_000)
    async with serving(token("boss", "admin")) as console:
        await page.goto(f"{console.url}/ui/")
        await log_in(page, console, "boss")
        other = await page.context.new_page()
        await Dashboard(other, console).see("topology")
        await page.get_by_role("button", name="log out boss").click()
        await other.get_by_label("Token").wait_for()
        await log_in(other, console, "boss")
        await page.get_by_role("heading", name="Overview").wait_for()
        assert console.principals is not None
        console.principals.learn((), 2)
        console.look_at_rights()
        await other.get_by_label("Token").wait_for()
        await page.get_by_label("Token").wait_for()


# --- for everybody ------------------------------------------------------------------------------


async def test_everything_is_reached_with_the_keyboard(tab: Dashboard) -> None:
    tab.console.log.append({"n": 1})
    tab.console.log.append({"n": 2})
    await tab.see("overview")
    press = tab.page.keyboard.press
    focused = "document.activeElement.textContent"
    for _ in range(12):
        await press("Tab")
        if await tab.page.evaluate(focused) == "Topics":
            break
    await press("Enter")
    await tab.rows().first.wait_for()
    await tab.page.locator(".virtual").focus()
    await press("Enter")
    await tab.shows("At a glance")
    await tab.see("topics/flights/records")
    await tab.rows().nth(1).wait_for()
    await tab.page.locator(".virtual").focus()
    await press("ArrowDown")
    await press("Enter")
    await tab.page.locator("dialog").get_by_text("flights:0:1").wait_for()
    await press("Escape")
    await tab.page.locator("dialog").wait_for(state="detached")
    assert await tab.page.evaluate("document.activeElement.className") == "virtual"


CONTRASTS = """() => {
  const channel = (value) => {
    const c = value / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  };
  const parsed = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = parsed(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return parsed(getComputedStyle(document.documentElement).backgroundColor);
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest(".unseen, .skip, svg, :disabled, option, noscript")) continue;
    const lights = [light(parsed(getComputedStyle(element).color)), light(ground(element))];
    const [high, low] = lights.sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) poor.push(`${walker.currentNode.data.trim()} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


CUT_OFF = """() => {
  const cells = [".virtual-head .cell", ".cell .state", ".cell.when"].map((one) => `main ${one}`);
  const seen = [...document.querySelectorAll(cells.join())];
  const cut = seen.filter((one) => {
    if (!one.checkVisibility()) return false;
    const cell = one.closest(".cell");
    return cell.scrollWidth > cell.clientWidth;
  });
  const here = document.querySelector("nav a[aria-current]");
  const { left, right } = here.getBoundingClientRect();
  const isBeyond = left < 0 || right > document.documentElement.clientWidth;
  return [...cut, ...(isBeyond ? [here] : [])].map((one) => one.textContent);
}"""
"""Headings, states, times and the tab of the page that is shown; what is in a table may be long."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_can_be_read_and_fits_a_telephone(tab: Dashboard, scheme: str) -> None:
    tab.console.log.append({"n": 1}, key="k")
    await tab.console.letter(1)
    await tab.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    await tab.page.set_viewport_size({"width": 375, "height": 800})
    for name in PAGES:
        await tab.see(name)
        await tab.page.locator("main .card, main .virtual").first.wait_for()
        assert await tab.page.evaluate(CONTRASTS) == [], name
        beyond = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await tab.page.evaluate(beyond) <= 0, name
        assert await tab.page.evaluate(CUT_OFF) == [], name


@pytest.mark.parametrize("width", [768, 1_120])
async def test_no_heading_is_cut_off(tab: Dashboard, width: int) -> None:
    await tab.page.set_viewport_size({"width": width, "height": 800})
    for name in PAGES:
        await tab.see(name)
        await tab.page.locator("main .card, main .virtual").first.wait_for()
        assert await tab.page.evaluate(CUT_OFF) == [], name


async def test_silence_is_longer_than_what_may_pass_between_two_looks() -> None:
    script = packaged_files()["connection.js"].content.decode()
    assert "SILENCE_MS = 15_000" in script
    assert looks.EVERY_S_MAX + watching.LOOK_TIMEOUT_S < 15
