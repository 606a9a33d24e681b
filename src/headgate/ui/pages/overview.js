// How the whole system fares, and what needs attention first.

import { h, keyed, replace, sentence, svg, text, attribute } from "../dom.js";
import { count, duration, percent, plural, short } from "../format.js";
import { card, state, stateOf, Table } from "../parts/pieces.js";
import { Sparkline } from "../parts/chart.js";

const TOPICS = 8;
const ROLES = ["coordinator", "ingest", "router", "gateway"];
const OUTCOMES = [
  ["acknowledged", "acknowledged by a gateway"],
  ["unmatched", "wanted by nobody"],
  ["parked", "parked when their turn came"],
  ["dead", "dead letters"],
  ["released", "released: their subscribers left"],
  ["skipped", "skipped by an operator"],
  ["uncounted", "settled before anything was counted"],
];
const VERDICTS = { bad: ["bad", "wrong"], warn: ["warn", "watch"], advice: ["advice", "advice"] };

export function open() {
  const attention = attentionCard();
  const figures = [
    figure("Events in", "per second", (live) => ({
      value: short(live.history.values("rate").at(-1) ?? 0),
      curve: live.history.values("rate"),
    })),
    figure("Sent to subscribers", "per second", (live) => {
      const rates = live.history.rates("sent");
      return { value: rate(rates.at(-1)), curve: rates };
    }),
    latencyFigure(),
    figure("Waiting", "records not settled", (live, overview) => ({
      value: short(overview.totals.waiting),
      note: oldest(overview.topics),
      curve: live.history.values("waiting"),
    })),
  ];
  const promise = promiseCard();
  const topics = topicsCard();
  const roles = rolesCard();
  const element = h(
    "div",
    { class: "page overview" },
    attention.element,
    h("div", { class: "figures" }, figures.map((one) => one.element)),
    promise.element,
    h("div", { class: "pair" }, topics.element, roles.element),
  );
  const parts = [attention, ...figures, promise, topics, roles];
  return {
    title: "Overview",
    element,
    update: (overview, live) => parts.forEach((one) => one.update(overview, live)),
  };
}

function rate(value) {
  return value === null || value === undefined ? "…" : short(value);
}

function oldest(topics) {
  const worst = Math.max(0, ...topics.map((one) => one.lag_ms));
  return worst ? `the oldest for ${duration(worst)}` : "nothing is late";
}

// --- what needs attention -----------------------------------------------------------------------

function attentionCard() {
  const health = h("span", { class: "tools" });
  const list = h("ul", { class: "attention" });
  const calm = h("p", { class: "calm", hidden: true }, state("Nothing needs attention.", "good"));
  const more = h("p", { class: "more" });
  const element = card("Needs attention first", health, calm, list, more);
  const update = (overview) => {
    const said = overview.attention;
    replace(health, stateOf(overview.health));
    calm.hidden = said.length > 0;
    keyed(
      list,
      said,
      (one) => `${one.verdict} ${one.subject} ${one.what}`,
      (one) => {
        const [kind, word] = VERDICTS[one.verdict];
        return h(
          "li",
          null,
          state(word, kind),
          h(
            "div",
            null,
            h("p", { class: "what" }, h("strong", null, one.subject), ": ", one.what),
            h("p", { class: "advice" }, sentence(one.advice)),
          ),
        );
      },
    );
    const left = overview.left_out.attention;
    text(more, left ? `and ${count(left)} more; headgate doctor lists them all` : "");
    more.hidden = !left;
  };
  return { element, update };
}

// --- figures ------------------------------------------------------------------------------------

function figure(title, unit, look) {
  const value = h("span", { class: "figure-value" }, "…");
  const note = h("span", { class: "figure-note" }, unit);
  const curve = new Sparkline(`${title}, over the last minutes`);
  const element = h(
    "section",
    { class: "card figure" },
    h("h2", null, title),
    h("p", null, value, note),
    curve.element,
  );
  const update = (overview, live) => {
    const seen = look(live, overview);
    text(value, seen.value);
    text(note, seen.note ? `${unit}, ${seen.note}` : unit);
    curve.show(seen.curve);
  };
  return { element, update };
}

function latencyFigure() {
  return figure("Median latency", "from record to acknowledgement", (live, overview) => {
    const bounds = overview.routing_bounds_s;
    const now = (share) => live.history.latency(share, bounds);
    const [half, most, all] = [now(0.5), now(0.95), now(0.99)];
    return {
      value: half === null ? "…" : duration(half),
      note: half === null ? "" : `95 %: ${duration(most)}, 99 %: ${duration(all)}`,
      curve: live.history.samples.map((_, index) => live.history.latency(0.5, bounds, index)),
    };
  });
}

// --- the promise --------------------------------------------------------------------------------

function promiseCard() {
  const equation = h("p", { class: "equation" });
  const bar = svg("svg", {
    class: "share-bar",
    viewBox: "0 0 1000 10",
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  const list = h("dl", { class: "outcomes" });
  const element = card(
    "Every record is accounted for",
    null,
    equation,
    bar,
    list,
  );
  const update = ({ totals }) => {
    const adds = totals.appended === totals.settled + totals.waiting;
    const again = totals.repeated;
    replace(
      equation,
      h("b", null, count(totals.appended)),
      " appended = ",
      h("b", null, count(totals.settled)),
      " settled + ",
      h("b", null, count(totals.waiting)),
      " waiting ",
      adds ? state("adds up", "good") : state("being counted", "busy"),
      ...(again ? [` ${plural(again, "record")} settled again by a reset, and counted again here`] : []),
    );
    const parts = [...OUTCOMES, ["waiting", "waiting"]].filter(
      ([name]) => totals[name] || name === "acknowledged" || name === "waiting",
    );
    const all = parts.reduce((sum, [name]) => sum + totals[name], 0) || 1;
    let from = 0;
    keyed(
      bar,
      parts.map(([name]) => ({ name, share: totals[name] / all })),
      (one) => one.name,
      (one) => svg("rect", { class: `outcome-${one.name}`, y: 0, height: 10 }),
      (rect, one) => {
        attribute(rect, "x", (from * 1000).toFixed(1));
        attribute(rect, "width", (one.share * 1000).toFixed(1));
        from += one.share;
      },
    );
    keyed(
      list,
      parts,
      ([name]) => name,
      ([name, meaning]) =>
        h(
          "div",
          null,
          h("dt", null, h("i", { class: `dot outcome-${name}`, "aria-hidden": "true" }), meaning),
          h("dd"),
        ),
      (row, [name]) => {
        text(row.lastChild, `${count(totals[name])} (${percent(totals[name] / all)})`);
      },
    );
  };
  return { element, update };
}

// --- topics and roles ---------------------------------------------------------------------------

function topicsCard() {
  const table = new Table({
    label: "The busiest topics",
    key: (one) => one.name,
    empty: "There are no topics yet: headgate topic create NAME makes one.",
    columns: [
      { title: "Topic", cell: (one) => h("a", { href: `#/topics/${encodeURIComponent(one.name)}` }, one.name) },
      { title: "Events/s", class: "number", cell: (one) => short(one.rate) },
      { title: "Lag", class: "number", cell: (one) => short(one.lag) },
      { title: "State", cell: (one) => topicState(one) },
    ],
  });
  const element = card("Topics", h("a", { href: "#/topics" }, "all"), table.element);
  const update = ({ topics }) => {
    const busiest = [...topics].sort((a, b) => b.rate - a.rate || (a.name < b.name ? -1 : 1));
    table.show(busiest.slice(0, TOPICS));
  };
  return { element, update };
}

/** The worst state of a topic's partitions. */
export function topicState(topic) {
  if (topic.repartition) return state(`repartition: ${topic.repartition.phase}`, "busy");
  const worst = ["failed", "stale", "lagging"].find((one) => topic.states[one]);
  if (!worst) return stateOf("healthy");
  const several = topic.partitions > 1 ? `${count(topic.states[worst])} ` : "";
  return state(`${several}${worst}`, worst === "lagging" ? "warn" : "bad");
}

function rolesCard() {
  const table = new Table({
    label: "Roles",
    key: (one) => one.role,
    columns: [
      { title: "Role", cell: (one) => one.role },
      { title: "Nodes", class: "number", cell: (one) => count(one.nodes.length) },
      { title: "State", cell: (one) => rolesState(one.nodes) },
    ],
  });
  const who = h("p", { class: "figure-note" });
  const element = card("Roles", h("a", { href: "#/nodes" }, "all"), table.element, who);
  const update = (overview) => {
    table.show(
      ROLES.map((role) => ({ role, nodes: overview.nodes.filter((one) => one.role === role) })),
    );
    text(
      who,
      `${plural(overview.subscriptions, "subscription")}, ${plural(overview.clients, "other client")}; Headgate ${overview.version}`,
    );
  };
  return { element, update };
}

function rolesState(nodes) {
  if (!nodes.length) return state("none is connected", "bad");
  const odd = ["lost", "starting", "draining"].find((one) => nodes.some((n) => n.state === one));
  return stateOf(odd ?? "ready");
}
