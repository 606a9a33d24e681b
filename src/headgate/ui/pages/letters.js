// Dead and parked letters: find, open, send again, delete.

import { get, post } from "../api.js";
import { h, replace, text } from "../dom.js";
import { count, cut, duration, instant, plural, visible } from "../format.js";
import { confirmed, failed, showDialog } from "../parts/dialogs.js";
import { button, card, field, select, stateOf, Table, when } from "../parts/pieces.js";
import { VirtualList } from "../parts/virtual_list.js";
import { may } from "../session.js";
import { recordView } from "./records.js";

const PAGE = 200;
const HELD_MAX = 5_000;
const CHUNK = 100;
const IDS_MAX = 500;
const BASE = "/v1/dead-letters";
const REASONS = ["unreachable", "overloaded", "too_old", "halted", "rejected", "shed", "left", "failed"];
const FILTERS = ["gateway", "group", "topic", "partition", "key", "reason", "older_than", "newer_than"];

export function open({ query }) {
  let letters = [];
  let lastId = 0;
  let isMore = false;
  let asking = null;
  const chosen = new Set();

  const inputs = inputsOf(query);
  const said = h("p", { class: "figure-note", role: "status" });
  const more = button("More", () => look());
  const retryChosen = button("Send chosen again…", () => change("retry", { ids: [...chosen] }), "primary");
  const deleteChosen = button("Delete chosen…", () => change("delete", { ids: [...chosen] }), "danger");
  const retryAll = button("Send all of these again…", () => change("retry", { filter: filter() }));
  const deleteAll = button("Delete all of these…", () => change("delete", { filter: filter() }));
  const list = new VirtualList({
    label: "Letters",
    columns: [
      { title: "", class: "check" },
      { title: "Id", class: "number count roomy" },
      { title: "Written", class: "when" },
      { title: "Reason" },
      { title: "For", class: "spare" },
      { title: "Record", class: "roomy" },
      { title: "Key", class: "key spare" },
      { title: "Error", class: "wide" },
    ],
    cells: (index) => row(letters[index]),
    open: (index) => showLetter(letters[index]),
    height: 480,
  });

  const value = (name) => inputs[name].value.trim();

  function filter() {
    const named = FILTERS.filter((name) => value(name)).map((name) => [name, value(name)]);
    const made = Object.fromEntries(named);
    if (made.partition !== undefined) made.partition = Number(made.partition);
    return made;
  }

  function begin() {
    letters = [];
    lastId = 0;
    chosen.clear();
    list.show(0);
    list.toTop();
    look();
  }

  async function look() {
    asking?.abort();
    const mine = (asking = new AbortController());
    text(said, "looking…");
    try {
      const wanted = { ...filter(), state: value("state"), after: lastId || "", limit: PAGE };
      const answer = await get(BASE, wanted, { signal: mine.signal });
      if (mine.signal.aborted) return;
      letters = [...letters, ...answer.letters].slice(-HELD_MAX);
      lastId = answer.last_id;
      isMore = answer.more;
      show();
    } catch (error) {
      if (!mine.signal.aborted) replace(said, failed(error));
    }
  }

  function show() {
    list.show(letters.length);
    text(said, letters.length ? `${plural(letters.length, "letter")}${isMore ? ", and there are more" : ""}` : "There are none of these.");
    more.disabled = !isMore;
    const isDead = value("state") === "dead";
    for (const one of [retryAll, deleteAll]) one.disabled = !isDead || !letters.length;
    for (const one of [retryChosen, deleteChosen]) one.disabled = !isDead || !chosen.size;
  }

  function row(letter) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Choose letter ${letter.id}`,
      on: {
        change: () => {
          if (box.checked) chosen.add(letter.id);
          else chosen.delete(letter.id);
          show();
        },
      },
    });
    box.checked = chosen.has(letter.id);
    return [
      letter.state === "dead" && may("write:letters") ? box : "",
      String(letter.id),
      when(letter.at_ms),
      letter.reason,
      whose(letter),
      `${letter.topic}:${letter.partition}:${letter.seq}`,
      letter.key === null ? "–" : h("bdi", null, visible(cut(letter.key, 100))),
      h("bdi", null, visible(cut(letter.error, 300))),
    ];
  }

  async function change(what, meant) {
    if (meant.ids && !meant.ids.length) return;
    await changeLetters(what, meant);
    begin();
  }

  async function showLetter(letter) {
    const body = h("div", { class: "record" }, "loading…");
    const { dialog, closed } = showDialog({
      title: `Letter ${letter.id}`,
      wide: true,
      content: h("div", { class: "dialog-body" }, body),
    });
    try {
      const whole = await get(`${BASE}/${letter.id}`);
      const acts = h(
        "div",
        { class: "steps" },
        button("Send it again…", () => (dialog.close(), change("retry", { ids: [letter.id] })), "primary"),
        button("Delete it…", () => (dialog.close(), change("delete", { ids: [letter.id] })), "danger"),
      );
      const isMine = may("write:letters");
      replace(body, whole.state === "dead" ? isMine && acts : parkedWords(whole), letterView(whole));
    } catch (error) {
      replace(body, failed(error));
    }
    return closed;
  }

  const counts = new Table({
    label: "Letters by gateway and group",
    key: (one) => `${one.gateway} ${one.group}`,
    empty: "There are no letters.",
    columns: [
      { title: "For", cell: (one) => (one.group ? `group ${one.group}` : one.gateway) },
      { title: "Dead", class: "number", cell: (one) => count(one.dead) },
      { title: "The oldest", class: "number", cell: (one) => (one.dead ? duration(one.dead_ms) : "–") },
      { title: "Parked", class: "number", cell: (one) => count(one.parked) },
      { title: "The oldest", class: "number roomy", cell: (one) => (one.parked ? duration(one.parked_ms) : "–") },
    ],
  });
  const uncounted = h("p", { class: "failed" });
  for (const name of ["state", "reason"]) inputs[name].addEventListener("change", begin);
  begin();
  return {
    title: "Letters",
    element: h(
      "div",
      { class: "page" },
      card("How many there are", null, uncounted, counts.element),
      h(
        "section",
        { class: "card" },
        h(
          "form",
          { class: "filters", on: { submit: (event) => (event.preventDefault(), begin()) } },
          field("State", inputs.state),
          field("Reason", inputs.reason),
          field("Gateway", inputs.gateway),
          field("Group", inputs.group),
          field("Topic", inputs.topic),
          field("Partition", inputs.partition),
          field("Key", inputs.key),
          field("Older than", inputs.older_than),
          field("Newer than", inputs.newer_than),
          h("button", { class: "primary", type: "submit" }, "Look"),
        ),
        may("write:letters")
          ? h("div", { class: "steps" }, retryChosen, deleteChosen, retryAll, deleteAll)
          : null,
        h("div", { class: "card-head" }, said, more),
        list.element,
      ),
    ),
    update(overview) {
      counts.show(overview.letters);
      text(uncounted, overview.letters_error);
    },
    close: () => asking?.abort(),
  };
}

function inputsOf(query) {
  const text = (name, props) => h("input", { name, value: query.get(name) ?? "", autocomplete: "off", size: "6", ...props });
  return {
    state: select("state", [["dead", "dead"], ["parked", "parked"]], query.get("state") ?? "dead"),
    reason: select("reason", [["", "any"], ...REASONS.map((one) => [one, one])], query.get("reason") ?? ""),
    gateway: text("gateway"),
    group: text("group"),
    topic: text("topic"),
    partition: text("partition", { inputmode: "numeric", size: "4" }),
    key: text("key"),
    older_than: text("older_than", { placeholder: "1h", size: "5" }),
    newer_than: text("newer_than", { placeholder: "7d", size: "5" }),
  };
}

function whose(letter) {
  return letter.group ? `group ${letter.group}` : letter.gateway;
}

function parkedWords(letter) {
  const taker = letter.group ? "a consumer of the group" : "its gateway";
  return h("p", null, stateOf("parked"), ` It is sent by itself as soon as ${taker} takes it.`);
}

function letterView(letter) {
  const why = h(
    "section",
    null,
    h("h3", null, "Why it is here"),
    h("p", null, h("b", null, letter.reason), ": ", h("bdi", null, visible(letter.error || "nothing was said"))),
    h(
      "p",
      { class: "figure-note" },
      `For ${whose(letter)}, tried ${plural(letter.attempts, "time")}, written ${instant(letter.at_ms)}`,
      letter.subscriptions.length ? `, for ${cut(letter.subscriptions.join(", "), 500)}` : "",
      letter.redelivery ? ", sent again before" : "",
      ".",
    ),
  );
  return [why, recordView(letter.topic, { ...letter, key: letter.key ?? undefined })];
}

// --- changes ------------------------------------------------------------------------------------

/** Counts first what is meant, then changes it, some at a time, until all are or the user stops. */
async function changeLetters(what, meant) {
  const isDelete = what === "delete";
  let all = 0;
  return confirmed({
    title: isDelete ? "Delete dead letters" : "Send dead letters again",
    danger: isDelete,
    action: isDelete ? "Delete for good" : "Send again",
    preview: async () => {
      all = 0;
      for (const some of parts(meant)) {
        all += (await post(`${BASE}/${what}`, { ...some, dry_run: true })).count;
      }
      return { content: meaning(isDelete, all, meant), possible: all > 0 };
    },
    act: async ({ say, stopped }) => {
      const sum = { count: 0, delivered: 0, dead_again: 0, errors: new Set() };
      for (const some of parts(meant)) {
        let after = 0;
        for (let more = true; more; ) {
          if (stopped()) return `Stopped: ${outcome(isDelete, sum)}`;
          const wait = isDelete ? {} : { wait: "3s" };
          const done = await post(`${BASE}/${what}`, { ...some, after, limit: CHUNK, ...wait });
          add(sum, done);
          say(`${count(sum.count)} of ${count(all)}…`);
          ({ more, last_id: after } = done);
        }
      }
      return outcome(isDelete, sum);
    },
  });
}

/** What is meant, in parts that a request may name. */
function parts({ ids, filter }) {
  if (!ids) return [{ filter }];
  const many = Math.ceil(ids.length / IDS_MAX);
  return Array.from({ length: many }, (_, n) => ({ ids: ids.slice(n * IDS_MAX, (n + 1) * IDS_MAX) }));
}

function add(sum, done) {
  sum.count += done.count;
  sum.delivered += done.delivered ?? 0;
  sum.dead_again += done.dead_again ?? 0;
  for (const one of done.errors ?? []) sum.errors.add(one);
}

function meaning(isDelete, all, meant) {
  if (!all) return h("p", null, "No dead letter is meant by this; nothing would happen.");
  const kind = Object.entries(meant.filter ?? {}).map(([name, value]) => `${name} ${value}`);
  const which = meant.ids ? "chosen ones" : kind.length ? `those with ${kind.join(", ")}` : "every dead letter there is";
  return h(
    "p",
    null,
    h("b", null, plural(all, "dead letter")),
    ` (${which}) `,
    isDelete
      ? "will be gone for good; this can't be undone."
      : "will go to everybody who is subscribed now, outside the order, marked as redeliveries.",
  );
}

function outcome(isDelete, sum) {
  if (isDelete) return `${plural(sum.count, "letter")} deleted.`;
  const rest = sum.count - sum.delivered - sum.dead_again;
  const parts = [
    `${plural(sum.count, "letter")} sent again: ${count(sum.delivered)} delivered`,
    sum.dead_again ? `${count(sum.dead_again)} dead again (${[...sum.errors].slice(0, 3).join("; ")})` : "",
    rest > 0 ? `${count(rest)} on their way` : "",
  ];
  return `${parts.filter(Boolean).join(", ")}.`;
}
