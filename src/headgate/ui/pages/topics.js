// All topics.

import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { count, duration, short } from "../format.js";
import { failed } from "../parts/dialogs.js";
import { card } from "../parts/pieces.js";
import { VirtualList } from "../parts/virtual_list.js";
import { topicState } from "./overview.js";

const ALL_EVERY_MS = 10_000;

export function open() {
  let topics = [];
  let everyTopic = null;
  let searched = "";
  let lastAsked = 0;
  const list = new VirtualList({
    label: "Topics",
    columns: [
      { title: "Topic", class: "wide" },
      { title: "Partitions", class: "number count roomy" },
      { title: "Placement", class: "standing spare" },
      { title: "Events/s", class: "number count roomy" },
      { title: "Records", class: "number count spare" },
      { title: "Lag", class: "number lag" },
      { title: "State", class: "wide standing" },
    ],
    cells: (index) => row(topics[index]),
    open: (index) => {
      location.hash = `#/topics/${encodeURIComponent(topics[index].name)}`;
    },
    rowHeight: 40,
    height: 560,
  });
  const search = h("input", {
    type: "search",
    placeholder: "search",
    "aria-label": "Search topics",
    on: { input: () => ((searched = search.value.trim()), show()) },
  });
  const trouble = h("p", { role: "status" });
  let known = [];
  const show = () => {
    topics = known.filter((one) => one.name.includes(searched));
    list.show(topics.length);
  };
  // The overview has the first two hundred; where there are more, all are asked for now and then.
  const askForAll = async () => {
    lastAsked = Date.now();
    try {
      everyTopic = (await get("/v1/topics")).topics.map(flowOf);
      replace(trouble);
    } catch (error) {
      replace(trouble, failed(error));
    }
  };
  return {
    title: "Topics",
    element: h("div", { class: "page" }, card("All topics", search, list.element, trouble)),
    update(overview) {
      const isMore = overview.left_out.topics > 0;
      if (isMore && Date.now() - lastAsked > ALL_EVERY_MS) askForAll();
      const fresh = new Map(overview.topics.map((one) => [one.name, one]));
      known = isMore && everyTopic ? everyTopic.map((one) => fresh.get(one.name) ?? one) : overview.topics;
      show();
    },
  };
}

function row(topic) {
  return [
    h("a", { href: `#/topics/${encodeURIComponent(topic.name)}`, tabindex: "-1" }, topic.name),
    count(topic.partitions),
    topic.placement,
    short(topic.rate),
    short(topic.totals.appended),
    topic.lag ? `${short(topic.lag)}${topic.lag_ms ? `, ${duration(topic.lag_ms)}` : ""}` : "0",
    topicState(topic),
  ];
}

/** A topic with all its partitions as the sums that the overview has. */
export function flowOf(topic) {
  const states = {};
  for (const one of topic.details) states[one.state] = (states[one.state] ?? 0) + 1;
  return {
    ...topic,
    states,
    rate: topic.details.reduce((sum, one) => sum + one.rate, 0),
    lag: topic.details.reduce((sum, one) => sum + one.lag, 0),
    lag_ms: topic.details.reduce((worst, one) => Math.max(worst, one.lag_ms), 0),
  };
}
