// One topic: its partitions with their owners, and another number of them.

import { get, path, post } from "../api.js";
import { h, replace } from "../dom.js";
import { clock, count, duration, percent, plural, short } from "../format.js";
import { confirmed, failed } from "../parts/dialogs.js";
import { button, card, facts, field, stateOf } from "../parts/pieces.js";
import { may } from "../session.js";
import { VirtualList } from "../parts/virtual_list.js";
import { flowOf } from "./topics.js";
import { topicState } from "./overview.js";

const EVERY_MS = 2_000;
const PARTITIONS_MAX = 1_024;
const SHOWN_WAITS = 100;
const SHOWN_NUMBERS = 12;

export function open({ rest: [name] }) {
  let details = [];
  let info = null;
  let timer = 0;
  let isClosed = false;
  const summary = h("div");
  const trouble = h("p", { role: "status" });
  const list = new VirtualList({
    label: `Partitions of ${name}`,
    columns: [
      { title: "Partition", class: "number count" },
      { title: "State", class: "standing" },
      { title: "Events/s", class: "number roomy" },
      { title: "Head", class: "number spare" },
      { title: "Lag", class: "number" },
      { title: "Age", class: "number spare" },
      { title: "Ingest", class: "spare" },
      { title: "Router", class: "spare" },
    ],
    cells: (index) => row(details[index]),
    open: (index) => {
      location.hash = `#/topics/${encodeURIComponent(name)}/records?partition=${details[index].partition}`;
    },
    height: 520,
  });
  const look = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        info = await get(path`/v1/topics/${name}`);
        details = info.details;
        replace(summary, summaryOf(info));
        list.show(details.length);
        replace(trouble);
      } catch (error) {
        replace(trouble, failed(error));
      }
    }
    if (!isClosed) timer = setTimeout(look, EVERY_MS);
  };
  look();
  const records = `#/topics/${encodeURIComponent(name)}/records`;
  return {
    title: name,
    heading: h("span", null, h("a", { href: "#/topics" }, "Topics"), " / ", h("bdi", null, name)),
    element: h(
      "div",
      { class: "page" },
      card(
        "At a glance",
        [
          may("subscribe")
            ? h("a", { class: "button primary", href: records }, "Look at its records")
            : null,
          may("write:topics")
            ? button("Change the number of partitions…", () => info && repartition(info, look))
            : null,
        ],
        trouble,
        summary,
      ),
      card("Partitions", null, list.element),
    ),
    close() {
      isClosed = true;
      clearTimeout(timer);
    },
    route: (route) => route.rest[0] === name && route.rest.length === 1,
  };
}

function row(one) {
  const told = one.reason ? h("span", { title: one.reason }, stateOf(one.state)) : stateOf(one.state);
  return [
    String(one.partition),
    told,
    short(one.rate),
    count(one.head),
    count(one.lag),
    one.lag_ms ? `${one.lag_known ? "" : "≥ "}${duration(one.lag_ms)}` : "–",
    one.owner ?? "nobody",
    one.router ?? "nobody",
  ];
}

function summaryOf(info) {
  const flow = flowOf(info);
  const last = Math.max(0, ...info.details.map((one) => one.last_event_ms));
  const underWay = info.repartition;
  return facts([
    ["State", topicState({ ...flow, repartition: null })],
    ["Partitions", `${count(info.partitions)}, ${info.placement}, version ${info.version}`],
    ["Events", `${short(flow.rate)} per second`],
    ["Records", `${count(info.totals.appended)}, of which ${count(info.totals.waiting)} wait`],
    ["Last event", last ? clock(last) : ""],
    [
      "Repartition",
      underWay
        ? `on its way to ${count(underWay.to)}: ${underWay.phase} for ${duration(underWay.since_ms)}` +
          `${underWay.waits_for ? `, ${underWay.waits_for}` : ""}` +
          `${underWay.backlog ? `, ${plural(underWay.backlog, "record")} left` : ""}`
        : "",
    ],
    ["Given up", info.given_up],
  ]);
}

function repartition(info, done) {
  const input = h("input", {
    type: "number",
    name: "partitions",
    min: "1",
    max: String(PARTITIONS_MAX),
    value: String(Math.min(PARTITIONS_MAX, info.partitions * 2)),
  });
  const where = path`/v1/topics/${info.name}/repartition`;
  const wanted = () => Number(input.value);
  return confirmed({
    title: `Change the partitions of ${info.name}`,
    fields: h("div", null, field(`Partitions (now ${count(info.partitions)})`, input)),
    action: "Repartition",
    preview: async () => {
      const plan = await post(where, { partitions: wanted(), dry_run: true });
      return { content: planView(plan), possible: plan.to !== plan.partitions };
    },
    act: async () => {
      await post(where, { partitions: wanted() });
      done();
      return "It has begun; events flow meanwhile, and the page of the topic shows how far it is.";
    },
  });
}

function planView(plan) {
  const drain =
    plan.drain_s === null
      ? "for as long as lanes take to settle them"
      : `about ${duration(plan.drain_s * 1_000)}`;
  return h(
    "ul",
    { class: "plan" },
    h("li", null, `${count(plan.partitions)} → ${count(plan.to)} partitions.`),
    plan.waits.length ? h("li", null, `${percent(plan.moved_share)} of all keys change their partition.`) : null,
    h(
      "li",
      null,
      plan.backlog
        ? `${plural(plan.backlog, "record")} are to be settled before that, which takes ${drain}.`
        : "Nothing has to be settled before that.",
    ),
    waits(plan),
  );
}

/** Who waits for whom, partition by partition; those that wait for the same are one line. */
function waits(plan) {
  if (!plan.waits.length) return h("li", null, "It has no keys, so no partition waits for another.");
  const alike = new Map();
  for (const { partition, after } of plan.waits) {
    // Partitions that share keys wait for each other, and none of them for itself.
    const sharing = new Set(partition < plan.partitions ? [...after, partition] : after);
    const key = [...sharing].sort((a, b) => a - b).join(" ");
    const one = alike.get(key) ?? { waiting: [], awaited: new Set() };
    one.waiting.push(partition);
    for (const other of after) one.awaited.add(other);
    alike.set(key, one);
  }
  const rows = [...alike.values()];
  return h(
    "li",
    null,
    "New records wait for those that are there now, of the same keys:",
    h(
      "ul",
      { class: "plan scroll" },
      rows
        .slice(0, SHOWN_WAITS)
        .map(({ waiting, awaited }) => h("li", null, `of ${numbers(waiting)} for those of ${numbers([...awaited].sort((a, b) => a - b))}`)),
      rows.length > SHOWN_WAITS ? h("li", null, `and ${count(rows.length - SHOWN_WAITS)} more like these`) : null,
    ),
  );
}

/** "0, 2, 4 and 12 more" */
function numbers(partitions) {
  const shown = partitions.slice(0, SHOWN_NUMBERS).join(", ");
  const left = partitions.length - SHOWN_NUMBERS;
  return left > 0 ? `${shown} and ${count(left)} more` : shown;
}
