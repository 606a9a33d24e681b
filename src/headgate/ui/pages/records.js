// The message browser: what is in a topic. Nothing is consumed or moved by looking.

import { Failure, get, path } from "../api.js";
import { h, replace, text } from "../dom.js";
import { write } from "../exact_json.js";
import { count, cut, instant, plural, size, visible } from "../format.js";
import { showDialog, failed } from "../parts/dialogs.js";
import { button, facts, field, select, when } from "../parts/pieces.js";
import { explanationView } from "../parts/explanation.js";
import { jsonView } from "../parts/json_view.js";
import { VirtualList } from "../parts/virtual_list.js";

const PAGE = 200;
const HELD_MAX = 5_000;
const HELD_BYTES = 50_000_000;
const GAPS_MAX = 5;
const LIVE_EVERY_MS = 1_000;
const PREVIEW_CHARS = 300;
const STARTS = [
  ["newest", "the newest first"],
  ["earliest", "the earliest first"],
  ["live", "live: what comes from now on"],
  ["time", "since a time"],
  ["position", "from a position"],
];
const FIELDS = ["start", "time", "position", "key", "partition", "collection", "where"];

export function open({ rest: [topic], query }) {
  const where = path`/v1/topics/${topic}/records`;
  let records = [];
  let missing = [];
  let cursor = "";
  let isLive = false;
  let timer = 0;
  let asking = null;
  let isClosed = false;

  const inputs = inputsOf(query);
  const whereError = h("span", { class: "failed", role: "alert", id: "where-error" });
  inputs.where.setAttribute("aria-describedby", "where-error");
  const form = h(
    "form",
    { class: "filters", on: { submit: (event) => (event.preventDefault(), begin()) } },
    field("Begin", inputs.start),
    h("span", { class: "only-time" }, field("Time", inputs.time)),
    h("span", { class: "only-position" }, field("Position", inputs.position, "PARTITION:SEQ,…")),
    field("Key", inputs.key),
    field("Partition", inputs.partition),
    field("Collection", inputs.collection),
    h("div", { class: "grow" }, field("Only where (CEL)", inputs.where)),
    h("button", { class: "primary", type: "submit" }, "Look"),
    whereError,
  );
  const said = h("p", { class: "figure-note", role: "status" });
  const gaps = h("ul", { class: "gaps" });
  const more = button("More", () => lookOn());
  const pause = button("Pause", () => (isLive ? stopLive() : beginLive()));
  const list = new VirtualList({
    label: `Records of ${topic}`,
    columns: [
      { title: "Time", class: "when" },
      { title: "Place", class: "place" },
      { title: "Op", class: "op" },
      { title: "Key", class: "key" },
      { title: "Document", class: "wide mono" },
      { title: "Size", class: "number spare" },
    ],
    cells: (index) => row(records[index]),
    open: (index) => showRecord(topic, records, index),
    height: 560,
  });

  const asked = () => {
    const value = Object.fromEntries(FIELDS.map((name) => [name, inputs[name].value.trim()]));
    const start = startOf(value);
    return { ...start, key: value.key, partition: value.partition, collection: value.collection, where: value.where };
  };

  async function begin() {
    stopLive();
    asking?.abort();
    records = [];
    missing = [];
    cursor = "";
    list.show(0);
    list.toTop();
    remember();
    showStart();
    await look({ ...asked(), limit: PAGE });
    if (inputs.start.value === "live" && cursor) beginLive();
  }

  async function lookOn() {
    const { key, partition, collection, where: filter } = asked();
    await look({ cursor, key, partition, collection, where: filter, limit: PAGE });
  }

  /** Whether the look succeeded. */
  async function look(wanted) {
    asking?.abort();
    const mine = (asking = new AbortController());
    more.disabled = true;
    if (!isLive) text(said, "looking…");
    try {
      const answer = await get(where, { ...wanted, timeout: "2s" }, { signal: mine.signal });
      if (isClosed || mine.signal.aborted) return;
      replace(whereError);
      take(answer);
    } catch (error) {
      if (isClosed || mine.signal.aborted) return;
      trouble(error);
    }
  }

  function trouble(error) {
    const isFilter = error instanceof Failure && error.code === "invalid_filter";
    if (!isFilter) {
      replace(said, failed(error));
      more.disabled = !cursor;
      return;
    }
    replace(whereError, error.message);
    text(said, "");
    inputs.where.focus();
    const at = error.details.position;
    if (Number.isInteger(at)) inputs.where.setSelectionRange(at, at + 1);
  }

  function take(answer) {
    cursor = answer.cursor;
    // Each look may find the same.
    missing = [...new Set([...missing, ...answer.missing.map((one) => gapWords(topic, one))])];
    missing = missing.slice(-GAPS_MAX);
    records = isLive
      ? held([...answer.records.reverse(), ...records], true)
      : held([...records, ...answer.records], false);
    list.show(records.length);
    more.disabled = !answer.more && inputs.start.value !== "live";
    replace(
      gaps,
      missing.map((words) => h("li", null, words)),
    );
    text(said, summary(answer));
  }

  function summary(answer) {
    const scanned = isLive ? "" : `, ${count(answer.scanned)} looked at just now`;
    const errors = answer.filter_errors
      ? `; the filter failed on ${plural(answer.filter_errors, "record")}`
      : "";
    const end = answer.more ? STOPS[answer.stopped] : isLive ? "waiting for more" : "that is all there is";
    return `${plural(records.length, "record")}${scanned}; ${end}${errors}`;
  }

  function beginLive() {
    isLive = true;
    pause.textContent = "Pause";
    text(said, "waiting for records…");
    const step = async () => {
      if (!isLive || isClosed) return;
      if (!document.hidden) await lookOn();
      timer = setTimeout(step, LIVE_EVERY_MS);
    };
    timer = setTimeout(step, 0);
  }

  function stopLive() {
    isLive = false;
    pause.textContent = "Go on";
    clearTimeout(timer);
  }

  function showStart() {
    const start = inputs.start.value;
    form.dataset.start = start;
    pause.hidden = start !== "live";
    more.hidden = start === "live";
  }

  /** In the address, so that it can be sent to somebody. */
  function remember() {
    const named = new URLSearchParams(
      FIELDS.map((name) => [name, inputs[name].value.trim()]).filter(
        ([name, value]) => value && !(name === "start" && value === "newest"),
      ),
    ).toString();
    const hash = `#/topics/${encodeURIComponent(topic)}/records${named ? `?${named}` : ""}`;
    if (hash !== location.hash) history.replaceState(null, "", hash);
  }

  inputs.start.addEventListener("change", () => {
    showStart();
    const needs = inputs[inputs.start.value];
    if (needs && !needs.value) needs.focus();
    else begin();
  });
  showStart();
  begin();

  return {
    title: `Records of ${topic}`,
    heading: h(
      "span",
      null,
      h("a", { href: "#/topics" }, "Topics"),
      " / ",
      h("a", { href: `#/topics/${encodeURIComponent(topic)}` }, h("bdi", null, topic)),
      " / records",
    ),
    element: h(
      "div",
      { class: "page" },
      h("section", { class: "card" }, form),
      h("section", { class: "card" }, h("div", { class: "card-head" }, said, pause, more), gaps, list.element),
    ),
    close() {
      isClosed = true;
      stopLive();
      asking?.abort();
    },
    /** The same topic with another question. */
    route(route) {
      if (route.rest[0] !== topic) return false;
      for (const name of FIELDS) {
        inputs[name].value = route.query.get(name) ?? (name === "start" ? "newest" : "");
      }
      begin();
      return true;
    },
  };
}

/** So many of them, and so large, stay in the page: looking further drops those at the other end. */
export function held(records, keepsFirst) {
  const ordered = keepsFirst ? records : [...records].reverse();
  let bytes = 0;
  let count = 0;
  for (const { size_bytes: size } of ordered.slice(0, HELD_MAX)) {
    bytes += size;
    if (count && bytes > HELD_BYTES) break;
    count += 1;
  }
  return keepsFirst ? records.slice(0, count) : records.slice(records.length - count);
}

const STOPS = {
  limit: "there is more",
  max_bytes: "there is more",
  timeout: "there is more to look at",
  scanned: "there is more to look at",
  end: "there is more by now",
};

function inputsOf(query) {
  const text = (name, props) =>
    h("input", { name, value: query.get(name) ?? "", autocomplete: "off", spellcheck: "false", ...props });
  return {
    start: select("start", STARTS, query.get("start") ?? "newest"),
    time: text("time", { type: "datetime-local", step: "1" }),
    position: text("position", { placeholder: "0:1000" }),
    key: text("key", { size: "12" }),
    partition: text("partition", { inputmode: "numeric", size: "6" }),
    collection: text("collection", { size: "10" }),
    where: text("where", { class: "mono", placeholder: 'altitude > 10000 && country == "CH"' }),
  };
}

function startOf({ start, time, position }) {
  switch (start) {
    case "earliest":
      return { from: "earliest" };
    case "live":
      return { from: "now" };
    case "time":
      return time ? { from: new Date(time).toISOString() } : { from: "earliest" };
    case "position":
      return { from: position || "earliest" };
    default:
      return {};
  }
}

const previews = new WeakMap();

/** Made once: a row is drawn again whenever something moves, and may have a megabyte. */
function previewOf(record) {
  let words = previews.get(record);
  if (words === undefined) {
    words = visible(cut(write(record.document), PREVIEW_CHARS));
    previews.set(record, words);
  }
  return words;
}

function row(record) {
  return [
    when(record.time_ms),
    `${record.partition}:${record.seq}`,
    record.op,
    record.key === undefined ? "–" : h("bdi", null, visible(cut(record.key, 100))),
    h("bdi", { dir: "ltr" }, previewOf(record)),
    size(record.size_bytes),
  ];
}

function gapWords(topic, { partition, first, last, why }) {
  const which = first === last ? `${topic}:${partition}:${first}` : `${topic}:${partition}:${first} to ${last}`;
  return why === "gone" ? `${which}: not there any more (retention).` : `${which}: what is stored isn't what was appended.`;
}

// --- one record ---------------------------------------------------------------------------------

function showRecord(topic, records, index) {
  const body = h("div", { class: "record" });
  const previous = button("← previous row", () => step(-1));
  const next = button("next row →", () => step(1));
  let at = index;
  const step = (by) => {
    at = Math.max(0, Math.min(records.length - 1, at + by));
    fill();
  };
  const fill = () => {
    previous.disabled = at === 0;
    next.disabled = at === records.length - 1;
    replace(body, recordView(topic, records[at]));
  };
  fill();
  showDialog({
    title: "Record",
    wide: true,
    content: h("div", { class: "dialog-body" }, h("div", { class: "steps" }, previous, next), body),
  });
}

/** One record with everything that is known of it; also what a letter holds. */
export function recordView(topic, record) {
  const place = `${topic}:${record.partition}:${record.seq}`;
  return [
    facts([
      ["Place", h("code", null, place)],
      ["Time", instant(record.time_ms)],
      ["Operation", record.op],
      ["Key", record.key === undefined ? "none" : h("bdi", null, visible(record.key))],
      ["Collection", record.collection ? h("bdi", null, visible(record.collection)) : ""],
      ["Event id", h("bdi", null, visible(record.event_id))],
      ["Version", record.version],
      ["Size", record.size_bytes === undefined ? "" : size(record.size_bytes)],
      ["Read at the origin's", record.source ? h("bdi", null, visible(cut(record.source, 300))) : ""],
      ["Not shown", record.masked?.length ? record.masked.join(", ") : ""],
    ]),
    headersView(record.headers),
    section("Document", documentView(record.document)),
    record.earlier === undefined ? null : section("Document before the change", documentView(record.earlier)),
    explanation(place),
  ];
}

function section(title, ...content) {
  return h("section", null, h("h3", null, title), ...content);
}

function headersView(headers = {}) {
  const named = Object.entries(headers);
  if (!named.length) return null;
  return section("Headers", facts(named.map(([name, value]) => [visible(name), h("bdi", null, visible(value))])));
}

function documentView(document) {
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(write(document, 2));
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "The browser doesn't let this page copy";
    }
  });
  return h("div", { class: "document" }, copy, jsonView(document));
}

// --- why it went where it went ------------------------------------------------------------------

function explanation(place) {
  const shown = h("div", { class: "explanation" });
  const ask = button("Who got it, and why?", async () => {
    ask.disabled = true;
    try {
      replace(shown, explanationView(await get("/v1/explain", { record: place })));
    } catch (error) {
      replace(shown, failed(error));
    }
    ask.disabled = false;
  });
  return section("Explanation", ask, shown);
}

