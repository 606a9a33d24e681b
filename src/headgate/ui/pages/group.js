// One consumer group: who owns its targets, up to where they have processed each partition, and
// having it begin elsewhere.

import { get, path, post } from "../api.js";
import { h, replace } from "../dom.js";
import { count, cut, plural, visible } from "../format.js";
import { confirmed, failed } from "../parts/dialogs.js";
import { button, card, facts, field, select, state } from "../parts/pieces.js";
import { VirtualList } from "../parts/virtual_list.js";
import { may } from "../session.js";

const EVERY_MS = 2_000;
const RESET_TIMEOUT_MS = 60_000;
const SHOWN_PARTITIONS = 200;
const STARTS = [
  ["latest", "with what comes from now on"],
  ["earliest", "with the first record there is"],
  ["time", "with what was appended since a time"],
];

export function open({ rest: [topic, name] }) {
  const where = path`/v1/groups/${topic}/${name}`;
  let group = null;
  let timer = 0;
  let asking = null;
  let isClosed = false;
  const summary = h("div");
  const trouble = h("p", { role: "status" });
  const targets = new VirtualList({
    label: `Targets of ${name}`,
    columns: [
      { title: "Target", class: "number count" },
      { title: "Consumer", class: "wide" },
      { title: "Gateway", class: "roomy" },
      { title: "Epoch", class: "number spare" },
      { title: "State", class: "standing" },
    ],
    cells: (index) => targetRow(group.targets[index]),
    height: 320,
  });
  const partitions = new VirtualList({
    label: `Committed positions of ${name}`,
    columns: [
      { title: "Partition", class: "number count" },
      { title: "Head", class: "number roomy" },
      { title: "Least", class: "number" },
      { title: "Furthest", class: "number spare" },
      { title: "Behind", class: "number" },
    ],
    cells: (index) => partitionRow(group.partitions[index]),
    open: (index) => {
      const { partition } = group.partitions[index];
      location.hash = `#/topics/${encodeURIComponent(topic)}/records?partition=${partition}`;
    },
    height: 420,
  });

  const look = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      asking?.abort();
      const mine = (asking = new AbortController());
      try {
        const found = await get(where, {}, { signal: mine.signal });
        if (isClosed) return;
        group = found;
        replace(summary, summaryOf(group));
        targets.show(group.targets.length);
        partitions.show(group.partitions.length);
        replace(trouble);
      } catch (error) {
        if (isClosed || mine.signal.aborted) return;
        replace(trouble, failed(error));
      }
    }
    timer = setTimeout(look, EVERY_MS);
  };
  look();

  return {
    title: name,
    heading: h(
      "span",
      null,
      h("a", { href: "#/subscriptions" }, "Groups"),
      " / ",
      h("bdi", null, visible(name)),
    ),
    element: h(
      "div",
      { class: "page" },
      card(
        "At a glance",
        may("write:groups")
          ? button("Begin elsewhere…", () => group && reset(group, where, look), "danger")
          : null,
        trouble,
        summary,
      ),
      card("Targets and who has them", null, targets.element),
      card(
        "Committed positions",
        null,
        h(
          "p",
          { class: "figure-note" },
          "Up to where its targets have processed each partition, the least and the furthest of them. A target without records of its own stays where it is, so what is behind is the most that may have to be processed.",
        ),
        partitions.element,
      ),
    ),
    close() {
      isClosed = true;
      clearTimeout(timer);
      asking?.abort();
    },
    route: (route) => route.name === "groups" && route.rest[0] === topic && route.rest[1] === name,
  };
}

function targetRow(one) {
  return [
    String(one.number),
    one.consumer ? h("bdi", null, visible(one.consumer)) : "nobody",
    one.gateway || "–",
    count(one.epoch),
    targetState(one),
  ];
}

function targetState(one) {
  if (one.moving_to) return state(`moves to ${visible(cut(one.moving_to, 60))}`, "busy");
  return one.consumer ? state("consumed", "good") : state("waits", "warn");
}

function partitionRow(one) {
  const numbers = [one.head, one.lowest, one.highest, one.behind_max].map(count);
  return [String(one.partition), ...numbers];
}

function summaryOf(group) {
  const unowned = group.targets.filter((one) => !one.consumer).length;
  const moving = group.targets.filter((one) => one.moving_to).length;
  const behind = group.partitions.reduce((sum, one) => sum + one.behind_max, 0);
  const lost = group.consumers.filter((one) => one.state === "lost").map((one) => one.id);
  return facts([
    ["Topic", h("a", { href: `#/topics/${encodeURIComponent(group.topic)}` }, group.topic)],
    ["Filter", group.where ? h("code", null, visible(cut(group.where, 1_000))) : "every record"],
    ["Targets", `${count(group.targets.length)}${unowned ? `, ${count(unowned)} without a consumer` : ""}${moving ? `, ${count(moving)} on the move` : ""}`],
    ["Consumers", `${count(group.consumers.length)}${lost.length ? `, of which ${visible(cut(lost.join(", "), 200))} lost` : ""}`],
    ["Behind", behind ? `at most ${plural(behind, "record")}` : "nothing"],
  ]);
}

// --- elsewhere ----------------------------------------------------------------------------------

function reset(group, where, done) {
  const start = select("to", STARTS, "latest");
  const time = h("input", { type: "datetime-local", name: "time", step: "1" });
  const onlyTime = h("div", { hidden: true }, field("Time", time));
  const to = () => {
    if (start.value !== "time") return start.value;
    return time.value ? new Date(time.value).toISOString() : "";
  };
  return confirmed({
    title: `Let ${group.group} begin elsewhere`,
    action: "Begin there",
    danger: true,
    fields: h("div", null, field("It begins", start), onlyTime),
    preview: async () => {
      onlyTime.hidden = start.value !== "time";
      if (!to()) return { content: h("p", null, "Say since when."), possible: false };
      const body = { to: to(), dry_run: true };
      return meaning(await post(`${where}/reset`, body, { timeoutMs: RESET_TIMEOUT_MS }));
    },
    act: async () => {
      const answer = await post(`${where}/reset`, { to: to() }, { timeoutMs: RESET_TIMEOUT_MS });
      done();
      return `It begins there in ${plural(answer.partitions.length, "partition")}.`;
    },
  });
}

/** What comes again and what never comes: up to so many, since nobody has counted whose they are. */
function meaning(plan) {
  const again = plan.partitions.reduce((sum, one) => sum + one.repeats_max, 0);
  const never = plan.partitions.reduce((sum, one) => sum + one.skips_max, 0);
  const shown = plan.partitions.slice(0, SHOWN_PARTITIONS);
  const left = plan.partitions.length - shown.length;
  return h(
    "div",
    null,
    again ? h("p", null, `Up to ${plural(again, "record")} will be handed out again; consumers are told to resync.`) : null,
    never ? h("p", null, `Up to ${plural(never, "record")} will never be handed out; consumers are told to resync.`) : null,
    again || never ? null : h("p", null, "It is there already; what is in hand may be handed out twice."),
    h(
      "ul",
      { class: "plan scroll" },
      shown.map((one) => h("li", null, `partition ${one.partition}: from ${between(one)} to ${count(one.next_seq)}`)),
      left > 0 ? h("li", null, `and ${count(left)} more`) : null,
    ),
  );
}

function between({ lowest, highest }) {
  const [from, to] = [lowest + 1, highest + 1].map(count);
  return from === to ? from : `${from} to ${to}`;
}
