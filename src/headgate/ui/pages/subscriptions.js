// Who wants to hear what: every subscription, consumer groups, who is slow, and what filters cost.

import { get } from "../api.js";
import { h, replace, text } from "../dom.js";
import { count, cut, plural, short, visible } from "../format.js";
import { failed } from "../parts/dialogs.js";
import { card, state, Table } from "../parts/pieces.js";
import { VirtualList } from "../parts/virtual_list.js";
import { may } from "../session.js";

const PAGE = 500;
const PAGES_KEPT = 40;
const TYPING_MS = 250;
const SHOWN_TARGETS = 12;

export function open() {
  const pages = new Map();
  const asked = new Set();
  let searched = "";
  let matching = 0;
  let known = -1;
  let typing = 0;
  let round = new AbortController();

  const said = h("p", { class: "figure-note", role: "status" });
  const search = h("input", {
    type: "search",
    placeholder: "id, filter or tenant",
    "aria-label": "Search subscriptions",
    on: {
      input: () => {
        clearTimeout(typing);
        typing = setTimeout(() => ((searched = search.value.trim()), begin()), TYPING_MS);
      },
    },
  });
  const list = new VirtualList({
    label: "Subscriptions",
    columns: [
      { title: "Id", class: "key" },
      { title: "Topic" },
      { title: "Filter", class: "wide mono" },
      { title: "Gateway", class: "spare" },
      { title: "Priority", class: "spare" },
      { title: "Tenant", class: "spare" },
      { title: "Cost", class: "number spare" },
    ],
    cells: (index) => {
      const one = pages.get(Math.floor(index / PAGE))?.[index % PAGE];
      return one ? row(one) : null;
    },
    needed: (from, to) => {
      for (let page = Math.floor(from / PAGE); page <= Math.floor((to - 1) / PAGE); page += 1) ask(page);
    },
    height: 420,
  });

  function begin() {
    round.abort();
    round = new AbortController();
    pages.clear();
    asked.clear();
    list.toTop();
    ask(0);
  }

  async function ask(page) {
    if (asked.has(page)) return;
    asked.add(page);
    const { signal } = round;
    try {
      const wanted = { search: searched, offset: page * PAGE, limit: PAGE };
      const answer = await get("/v1/subscriptions", wanted, { signal });
      if (signal.aborted) return;
      ({ matching } = answer);
      keep(page, answer.subscriptions);
      text(
        said,
        searched
          ? `${count(matching)} of ${plural(answer.total, "subscription")}`
          : plural(answer.total, "subscription"),
      );
      list.show(matching);
    } catch (error) {
      if (signal.aborted) return;
      asked.delete(page);
      replace(said, failed(error));
    }
  }

  function keep(page, found) {
    pages.set(page, found);
    for (const old of pages.keys()) {
      if (pages.size <= PAGES_KEPT) break;
      pages.delete(old);
      asked.delete(old);
    }
  }

  const filters = new Table({
    label: "The costliest filters",
    key: (one) => `${one.topic} ${one.where}`,
    empty: "No filter costs anything worth naming.",
    columns: [
      { title: "Filter", class: "mono", cell: (one) => h("bdi", null, visible(cut(one.where, 300))) },
      { title: "Topic", cell: (one) => one.topic },
      { title: "Each", class: "number", cell: (one) => `${count(one.cost_us)} µs` },
      { title: "Together", class: "number", cell: (one) => `${count(one.together_us)} µs` },
      { title: "Subscriptions", class: "number", cell: (one) => count(one.subscriptions) },
      { title: "At", cell: (one) => one.gateways.join(", ") },
    ],
  });
  const gateways = new Table({
    label: "Gateways by what waits for their subscribers",
    key: (one) => one.id,
    empty: "No gateway is connected.",
    columns: [
      { title: "Gateway", cell: (one) => one.id },
      { title: "Subscribers", class: "number", cell: (one) => count(one.subscribers) },
      { title: "Waiting for them", class: "number", cell: (one) => count(one.depth) },
      { title: "For each", class: "number roomy", cell: (one) => (one.subscribers ? short(one.depth / one.subscribers) : "–") },
      { title: "Filters cost", about: "Of all its subscribers, per record, at most", class: "number", cell: (one) => `${count(one.filter_cost_us)} µs` },
    ],
  });
  const slowest = new Table({
    label: "The slowest subscribers",
    key: (one) => `${one.gateway} ${one.subscription}`,
    empty: "Everybody keeps up.",
    columns: [
      { title: "Subscription", cell: (one) => h("bdi", null, visible(cut(one.subscription, 120))) },
      { title: "Topic", cell: (one) => one.topic },
      { title: "Gateway", cell: (one) => one.gateway },
      { title: "Waiting", class: "number", cell: (one) => count(one.waiting) },
      {
        title: "State",
        cell: (one) => (one.catching_up ? state("catches up from the log", "warn") : state("takes what waits", "busy")),
      },
    ],
  });
  const groups = new Table({
    label: "Consumer groups",
    key: (one) => `${one.topic}/${one.group}`,
    empty: "There are no consumer groups.",
    columns: [
      { title: "Group", cell: groupName },
      { title: "Topic", cell: (one) => one.topic },
      { title: "Filter", class: "mono", cell: (one) => h("bdi", null, visible(cut(one.where ?? "–", 200))) },
      { title: "Targets", class: "number", cell: (one) => count(one.targets) },
      { title: "State", cell: groupState },
      { title: "Consumers and their targets", cell: consumers },
    ],
  });
  begin();
  return {
    title: "Subscriptions",
    heading: "Subscriptions and groups",
    element: h(
      "div",
      { class: "page" },
      card("Subscriptions", search, said, list.element),
      card("Consumer groups", null, groups.element),
      card("The slowest subscribers", null, slowest.element),
      card("What waits for subscribers", null, gateways.element),
      card("The costliest filters", null, filters.element),
    ),
    update(overview) {
      filters.show(overview.filters);
      slowest.show(overview.slowest);
      gateways.show([...overview.gateways].sort((a, b) => b.depth - a.depth));
      groups.show(overview.groups);
      // Somebody came or went: what is seen is asked for again.
      if (known !== -1 && overview.subscriptions !== known) refresh();
      known = overview.subscriptions;
    },
    close: () => round.abort(),
  };

  function refresh() {
    const seen = [...pages.keys()];
    asked.clear();
    for (const page of seen.slice(-2)) ask(page);
    if (!seen.length) ask(0);
  }
}

function row(one) {
  const name = one.target === undefined ? one.id : `${one.id} (target ${one.target})`;
  return [
    h("bdi", null, visible(name)),
    one.topic,
    one.where ? h("bdi", { dir: "ltr" }, visible(cut(one.where, 300))) : "every record",
    one.gateway,
    one.priority ?? "normal",
    one.tenant ?? "",
    one.cost_us ? `${count(one.cost_us)} µs` : "–",
  ];
}

function groupName({ topic, group }) {
  const words = h("bdi", null, visible(group));
  if (!may("read:groups")) return h("b", null, words);
  return h("a", { href: `#/groups/${encodeURIComponent(topic)}/${encodeURIComponent(group)}` }, words);
}

function groupState(group) {
  if (group.unowned) return state(`${plural(group.unowned, "target")} without a consumer`, "warn");
  if (group.moving) return state(`${plural(group.moving, "target")} on the move`, "busy");
  return state("consumed", "good");
}

function consumers(group) {
  return h(
    "ul",
    { class: "plain" },
    group.consumers.map((one) =>
      h(
        "li",
        null,
        h("b", null, one.id),
        ` at ${one.gateway}${one.state === "lost" ? " (lost)" : ""}: `,
        one.targets.length ? targets(one.targets) : "none",
      ),
    ),
  );
}

function targets(numbers) {
  const shown = numbers.slice(0, SHOWN_TARGETS).join(", ");
  return numbers.length > SHOWN_TARGETS ? `${shown} and ${count(numbers.length - SHOWN_TARGETS)} more` : shown;
}
