// Who is there: drain, take back, restart; what a plan would move; and what each runs with.

import { path, post, remove } from "../api.js";
import { h, text } from "../dom.js";
import { count, duration, plural, short } from "../format.js";
import { confirmed } from "../parts/dialogs.js";
import { button, card, state, stateOf, Table } from "../parts/pieces.js";
import { settingsCard } from "../parts/settings.js";
import { may } from "../session.js";

const SHOWN_MOVES = 200;

export function open() {
  const nodes = new Table({
    label: "Nodes",
    key: (one) => `${one.role} ${one.id}`,
    columns: [
      { title: "Node", cell: (one) => h("span", null, h("b", null, one.id), h("small", { class: "narrow-only" }, one.role)) },
      { title: "Role", class: "roomy", cell: (one) => one.role },
      { title: "State", cell: nodeState },
      { title: "Partitions", class: "number roomy", cell: (one) => (holds(one) ? count(one.partitions) : "–") },
      { title: "Lapses", about: "How often it wasn't heard of in time", class: "number roomy", cell: (one) => count(one.lapses) },
      { title: "Address", class: "mono roomy", cell: (one) => one.url },
      { title: "Actions", class: "acts", acts: (one) => `${one.id} ${one.state}`, cell: acts },
    ],
  });
  const lanes = new Table({
    label: "Lanes",
    key: (one) => `${one.router} ${one.lane} ${one.window} ${one.attempt}`,
    empty: "No lane is connected.",
    columns: [
      { title: "Lane", cell: (one) => `${one.router} / ${one.lane}` },
      { title: "Window", about: "A lane reads for one window after the other; this is its number", class: "number roomy", cell: (one) => count(one.window) },
      { title: "Partitions", class: "number roomy", cell: (one) => count(one.partitions) },
      { title: "Read", class: "number roomy", cell: (one) => short(one.read) },
      { title: "Matched", class: "number roomy", cell: (one) => short(one.matched) },
      { title: "Delivered", class: "number", cell: (one) => short(one.delivered) },
      { title: "Processor", about: "Of one core", class: "number roomy", cell: (one) => `${Math.round(one.cpu * 100)} %` },
      { title: "State", cell: laneState },
    ],
  });
  const gateways = new Table({
    label: "Gateways",
    key: (one) => one.id,
    empty: "No gateway is connected.",
    columns: [
      { title: "Gateway", cell: (one) => h("b", null, one.id) },
      { title: "Subscribers", class: "number", cell: (one) => count(one.subscribers) },
      { title: "Waiting for them", class: "number", cell: (one) => count(one.depth) },
      { title: "Sent", class: "number roomy", cell: (one) => short(one.sent) },
      { title: "Held", about: "Subscribers that get nothing until the coordinator knows them again", class: "number roomy", cell: (one) => count(one.held) },
    ],
  });
  const moves = new Table({
    label: "Moves under way",
    key: (one) => `${one.topic}:${one.partition}`,
    empty: "Nothing moves.",
    columns: [
      { title: "Partition", cell: (one) => `${one.topic}:${one.partition}` },
      { title: "From", cell: (one) => one.from },
      { title: "To", cell: (one) => one.to },
      { title: "Phase", cell: (one) => one.phase },
      { title: "For", class: "number", cell: (one) => duration(one.age_ms) },
    ],
  });
  const leader = h("p", { class: "figure-note" });
  const settings = may("read:settings") ? settingsCard() : null;
  return {
    title: "Nodes",
    element: h(
      "div",
      { class: "page" },
      card("Nodes", may("write:nodes") ? button("Rebalance…", rebalance) : null, leader, nodes.element),
      card("Lanes", null, lanes.element),
      card("Gateways", null, gateways.element),
      card("Moves", null, moves.element),
      settings?.element,
    ),
    update(overview) {
      text(leader, `${overview.leader || "nobody"} leads${overview.learning ? ", and learns who owns what" : ""}; version ${overview.version}`);
      nodes.show(overview.nodes);
      lanes.show(overview.lanes);
      gateways.show(overview.gateways);
      moves.show(overview.moves);
      settings?.nodes(overview.nodes);
    },
    close: () => settings?.close(),
  };
}

function holds(node) {
  return node.role === "ingest" || node.role === "router";
}

function nodeState(node) {
  const late = node.state === "lost" ? ` last heard ${duration(node.last_seen_ms_ago)} ago` : "";
  const left = node.state === "draining" && node.partitions ? ` ${count(node.partitions)} left` : "";
  return h("span", null, stateOf(node.state), late, left);
}

function laneState(lane) {
  if (lane.trouble) return h("span", { title: lane.trouble }, state("can't go on", "bad"));
  const broken = lane.links.find((one) => one.breaker !== "closed");
  if (broken) return h("span", { title: broken.error }, state(`gave up on ${broken.gateway}`, "bad"));
  const hard = lane.links.find((one) => one.pressure !== "normal");
  if (hard) return state(`${hard.gateway} falls behind`, "warn");
  if (lane.attempt) return state("failed and started again", "warn");
  return state("reading", "good");
}

function acts(node) {
  if (node.role === "coordinator" || !may("write:nodes")) return h("span");
  const back = node.state === "draining";
  return h(
    "span",
    { class: "acts" },
    holds(node) ? button(back ? "Take back…" : "Drain…", () => drain(node, back), "small") : null,
    button("Restart…", () => restart(node), "small"),
  );
}

function drain(node, back) {
  const where = path`/v1/nodes/${node.id}/drain`;
  return confirmed({
    title: back ? `Take ${node.id} back` : `Drain ${node.id}`,
    action: back ? "Take it back" : "Drain it",
    preview: () =>
      h(
        "p",
        null,
        back
          ? `${node.id} gets partitions again with the next plan.`
          : `${node.id} gives its ${plural(node.partitions, "partition")} to others while events flow, and gets none. Then it can be stopped.`,
      ),
    act: async () => {
      await (back ? remove(where) : post(where, undefined));
      return back ? "It is taken back." : "It has begun; the table shows how many partitions are left.";
    },
  });
}

function restart(node) {
  return confirmed({
    title: `Restart ${node.id}`,
    action: "Restart it",
    danger: true,
    preview: () =>
      h(
        "p",
        null,
        `${node.id} stops, says that it returns, and begins anew where something starts it again. What it has waits for it, or goes to others when its grace ends; nothing is lost.`,
      ),
    act: async () => {
      await post(path`/v1/nodes/${node.id}/restart`, undefined);
      return "It is told so.";
    },
  });
}

function rebalance() {
  return confirmed({
    title: "Rebalance",
    action: "Carry it out",
    preview: async () => {
      const { moves } = await post("/v1/rebalance", { dry_run: true });
      if (!moves.length) {
        return { content: h("p", null, "All is spread as evenly as it can be: nothing would move."), possible: false };
      }
      return movesView(moves);
    },
    act: async () => {
      const { moves } = await post("/v1/rebalance", { dry_run: false });
      return `${plural(moves.length, "move")} under way.`;
    },
  });
}

function movesView(moves) {
  const rows = moves.slice(0, SHOWN_MOVES).map((one) =>
    h("li", null, `${one.kind} ${one.topic}:${one.partition}: ${one.from || "nobody"} → ${one.to}`),
  );
  const left = moves.length - rows.length;
  return h(
    "div",
    null,
    h("p", null, `${plural(moves.length, "move")} would spread it evenly:`),
    h("ul", { class: "plan scroll" }, rows, left > 0 ? h("li", null, `and ${count(left)} more`) : null),
  );
}
