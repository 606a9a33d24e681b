// How records flow, as a picture: ingest nodes, topics, lanes, gateways, subscribers. The width of a
// line is its rate, its dashes run at it, and colours say how things are; a table has the same in
// words.

import { attribute, h, keyed, svg, text } from "../dom.js";
import { count, duration, plural, short } from "../format.js";
import { card, Table } from "../parts/pieces.js";

const COLUMNS = ["ingest", "topic", "lane", "gateway", "audience"];
const TITLES = ["Ingest", "Topics", "Lanes", "Gateways", "Subscribers"];
const NODES_MAX = 12;
/* Of a column; the others are one node that counts them. */
const WIDTH = 1000;
const BOX = { width: 150, height: 44, gap: 18, top: 44 };
const LINE_MAX = 14;

export function open() {
  const lines = svg("g");
  const boxes = svg("g");
  const titles = svg(
    "g",
    { class: "column-titles" },
    TITLES.map((title, index) => svg("text", { x: columnX(index) + BOX.width / 2, y: 22 }, title)),
  );
  const picture = svg("svg", { class: "topology", role: "img", "aria-label": "How records flow; the table below says the same" }, titles, lines, boxes);
  const flows = new Table({
    label: "Flows",
    key: (one) => one.id,
    empty: "Nothing flows yet: there is no topic with a partition.",
    columns: [
      { title: "From", cell: (one) => one.fromName },
      { title: "To", cell: (one) => one.toName },
      { title: "Per second", class: "number", cell: (one) => short(one.rate) },
      { title: "State", cell: (one) => one.words },
    ],
  });
  const going = new Table({
    label: "Changes under way",
    key: (one) => one.id,
    empty: "Nothing moves, no window changes, no topic is repartitioned.",
    columns: [
      { title: "What", cell: (one) => one.what },
      { title: "Phase", cell: (one) => one.phase },
      { title: "For", class: "number", cell: (one) => one.since },
    ],
  });
  let before = null;
  return {
    title: "Topology",
    element: h(
      "div",
      { class: "page" },
      card("How records flow now", null, h("div", { class: "topology-frame", tabindex: "0", role: "region", "aria-label": "Picture of the topology" }, picture)),
      card("Changes under way", null, going.element),
      card("The same in words", null, flows.element),
    ),
    update(overview) {
      const rates = new Rates(before, overview);
      before = rates.now;
      const graph = graphOf(overview, rates);
      draw(picture, lines, boxes, graph);
      flows.show(graph.links);
      going.show(changes(overview));
    },
  };
}

function columnX(index) {
  return index * ((WIDTH - BOX.width) / (COLUMNS.length - 1));
}

// --- rates of what is only counted --------------------------------------------------------------

/** Of counters that begin anew with each lane and gateway; what falls has begun anew. */
class Rates {
  constructor(before, overview) {
    const counts = new Map();
    for (const lane of overview.lanes) {
      for (const link of lane.links) counts.set(linkKey(lane, link.gateway), link.acknowledged);
    }
    for (const gateway of overview.gateways) counts.set(gateway.id, gateway.sent);
    const at = overview.seen_ms;
    // Updates without news of these keep the rates as they were.
    this.now = before?.at === at ? before : { at, counts, rates: ratesOf(before, counts, at) };
  }

  of(key) {
    return this.now.rates.get(key) ?? 0;
  }
}

/** A lane and its successor have one number while a window changes, and each counts by itself. */
function linkKey({ router, lane, window, attempt }, gateway) {
  return `${router}/${lane}/${window}/${attempt}>${gateway}`;
}

function ratesOf(before, counts, at) {
  const rates = new Map();
  if (!before) return rates;
  for (const [key, value] of counts) {
    const grown = value - (before.counts.get(key) ?? value);
    const now = grown >= 0 ? (grown * 1_000) / Math.max(1, at - before.at) : 0;
    rates.set(key, now * 0.5 + (before.rates.get(key) ?? now) * 0.5);
  }
  return rates;
}

// --- the graph ----------------------------------------------------------------------------------

function graphOf(overview, rates) {
  const graph = { columns: COLUMNS.map(() => new Map()), links: new Map() };
  const add = (column, id, title, note, kind) => {
    const nodes = graph.columns[column];
    if (!nodes.has(id)) nodes.set(id, { id: `${column} ${id}`, column, title, note, kind });
  };
  const nodeState = new Map(overview.nodes.map((one) => [one.id, one.state]));
  for (const node of overview.nodes) {
    if (node.role === "ingest") add(0, node.id, node.id, node.state, kindOf(node.state));
  }
  const moving = new Set(overview.moves.map((one) => one.topic));
  for (const topic of overview.topics) {
    const note = topic.repartition
      ? `→ ${count(topic.repartition.to)}: ${topic.repartition.phase}`
      : plural(topic.partitions, "partition");
    const busy = topic.repartition || moving.has(topic.name);
    add(1, topic.name, topic.name, note, busy ? "busy" : topicKind(topic));
  }
  for (const lane of overview.lanes) {
    const cpu = `${Math.round(lane.cpu * 100)} % of a core`;
    add(2, `${lane.router}/${lane.lane}`, `${lane.router} / ${lane.lane}`, cpu, lane.trouble ? "bad" : "good");
  }
  for (const gateway of overview.gateways) {
    const word = nodeState.get(gateway.id) ?? "ready";
    add(3, gateway.id, gateway.id, gateway.depth ? `${short(gateway.depth)} waiting` : word, kindOf(word));
    add(4, gateway.id, plural(gateway.subscribers, "subscriber"), gateway.held ? `${count(gateway.held)} held` : `of ${gateway.id}`, gateway.held ? "warn" : "good");
    link(graph, 3, gateway.id, 4, gateway.id, rates.of(gateway.id), "good", "");
  }
  for (const flow of overview.paths) {
    const source = flow.ingest || "nobody";
    const reader = flow.lane >= 0 ? `${flow.router}/${flow.lane}` : flow.router || "nobody";
    if (!flow.ingest) add(0, source, "nobody", "takes these records", "bad");
    if (flow.lane < 0) add(2, reader, flow.router || "nobody", flow.router ? "no lane reads" : "reads these", flow.router ? "warn" : "bad");
    link(graph, 0, source, 1, flow.topic, flow.rate, flow.ingest ? "good" : "bad", "");
    link(graph, 1, flow.topic, 2, reader, flow.rate, flow.lane >= 0 ? "good" : "warn", flow.lag ? `${short(flow.lag)} waiting` : "");
  }
  for (const lane of overview.lanes) {
    for (const one of lane.links) {
      const kind = one.breaker !== "closed" ? "bad" : one.pressure === "normal" ? "good" : "warn";
      const words = one.breaker !== "closed" ? "given up for now" : one.waiting ? `${short(one.waiting)} waiting` : "";
      add(3, one.gateway, one.gateway, "", kind);
      link(graph, 2, `${lane.router}/${lane.lane}`, 3, one.gateway, rates.of(linkKey(lane, one.gateway)), kind, words);
    }
  }
  return arranged(graph);
}

function kindOf(word) {
  return { ready: "good", starting: "busy", draining: "warn", lost: "bad" }[word] ?? "good";
}

function topicKind(topic) {
  if (topic.states.failed || topic.states.stale) return "bad";
  return topic.states.lagging ? "warn" : "good";
}

function link(graph, fromColumn, from, toColumn, to, rate, kind, words) {
  const id = `${fromColumn} ${from} > ${toColumn} ${to}`;
  const known = graph.links.get(id);
  if (known) {
    known.rate += rate;
    known.kind = worse(known.kind, kind);
    known.words ||= words;
  } else {
    graph.links.set(id, { id, from: `${fromColumn} ${from}`, to: `${toColumn} ${to}`, rate, kind, words });
  }
}

const ORDER = ["good", "busy", "warn", "bad"];

function worse(one, other) {
  return ORDER.indexOf(one) > ORDER.indexOf(other) ? one : other;
}

/** Puts every node somewhere; those beyond a column's bound become one. */
function arranged(graph) {
  const places = new Map();
  const nodes = [];
  graph.columns.forEach((column, index) => {
    const every = [...column.values()];
    const shown = every.length > NODES_MAX ? every.slice(0, NODES_MAX - 1) : every;
    const rest = every.slice(shown.length);
    const all = rest.length
      ? [...shown, { id: `${index} rest`, column: index, title: `${count(rest.length)} more`, note: "", kind: rest.map((one) => one.kind).reduce(worse) }]
      : shown;
    all.forEach((node, row) => {
      node.x = columnX(index);
      node.y = BOX.top + row * (BOX.height + BOX.gap);
      places.set(node.id, node);
    });
    for (const one of rest) places.set(one.id, all.at(-1));
    nodes.push(...all);
  });
  const links = new Map();
  for (const one of graph.links.values()) {
    const [from, to] = [places.get(one.from), places.get(one.to)];
    if (!from || !to) continue;
    const id = `${from.id} > ${to.id}`;
    const known = links.get(id);
    if (known) {
      known.rate += one.rate;
      known.kind = worse(known.kind, one.kind);
    } else {
      links.set(id, { ...one, id, from, to, fromName: from.title, toName: to.title });
    }
  }
  const rows = Math.max(1, ...COLUMNS.map((_, index) => nodes.filter((one) => one.column === index).length));
  const ordered = [...links.values()].sort((a, b) => a.from.column - b.from.column || b.rate - a.rate);
  return { nodes, links: ordered, height: BOX.top + rows * (BOX.height + BOX.gap) };
}

// --- the picture --------------------------------------------------------------------------------

function draw(picture, lines, boxes, { nodes, links, height }) {
  attribute(picture, "viewBox", `-1 0 ${WIDTH + 2} ${height}`);
  const most = Math.max(1, ...links.map((one) => one.rate));
  keyed(
    lines,
    links,
    (one) => one.id,
    () => svg("g", null, svg("path", { class: "flow-bed" }), svg("path", { class: "flow" }), svg("title")),
    (group, one) => {
      const width = one.rate ? Math.max(2, LINE_MAX * Math.sqrt(one.rate / most)) : 1;
      const d = curve(one.from, one.to);
      attribute(group, "class", `link ${one.kind} ${one.rate ? speed(one.rate) : "still"}`);
      attribute(group.children[0], "d", d);
      attribute(group.children[0], "stroke-width", width.toFixed(1));
      attribute(group.children[1], "d", d);
      text(group.lastChild, `${one.fromName} → ${one.toName}: ${short(one.rate)} per second ${one.words}`);
    },
  );
  keyed(
    boxes,
    nodes,
    (one) => one.id,
    () =>
      svg(
        "g",
        null,
        svg("rect", { width: BOX.width, height: BOX.height, rx: 8 }),
        svg("text", { class: "box-title", x: 12, y: 19 }),
        svg("text", { class: "box-note", x: 12, y: 35 }),
        svg("title"),
      ),
    (group, one) => {
      attribute(group, "class", `box ${one.kind}`);
      attribute(group, "transform", `translate(${one.x},${one.y})`);
      text(group.children[1], shortened(one.title, 19));
      text(group.children[2], shortened(one.note, 23));
      text(group.lastChild, `${one.title}: ${one.note}`);
    },
  );
}

function curve(from, to) {
  const [x1, y1] = [from.x + BOX.width, from.y + BOX.height / 2];
  const [x2, y2] = [to.x, to.y + BOX.height / 2];
  const bend = (x2 - x1) / 2;
  return `M${x1},${y1}C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}

function speed(rate) {
  if (rate < 10) return "slow";
  return rate < 1_000 ? "brisk" : "fast";
}

function shortened(words, most) {
  return words.length > most ? `${words.slice(0, most - 1)}…` : words;
}

// --- what changes -------------------------------------------------------------------------------

function changes(overview) {
  return [
    ...overview.topics
      .filter((one) => one.repartition)
      .map((one) => ({
        id: `repartition ${one.name}`,
        what: `${one.name}: ${count(one.partitions)} → ${count(one.repartition.to)} partitions`,
        phase: one.repartition.phase + (one.repartition.waits_for ? `: ${one.repartition.waits_for}` : ""),
        since: duration(one.repartition.since_ms),
      })),
    ...overview.moves.map((one) => ({
      id: `move ${one.topic}:${one.partition}`,
      what: `${one.topic}:${one.partition} from ${one.from} to ${one.to}`,
      phase: one.phase,
      since: duration(one.age_ms),
    })),
    ...overview.windows
      .filter((one) => one.state !== "ready")
      .map((one) => ({
        id: `window ${one.router}`,
        what: `window ${count(one.window)} of ${one.router}`,
        phase: one.state,
        since: one.change_ms ? `the last change took ${duration(one.change_ms)}` : "",
      })),
  ];
}
