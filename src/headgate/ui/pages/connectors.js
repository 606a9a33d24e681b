// What reads databases into topics.

import { path, post, remove } from "../api.js";
import { attribute, h, keyed, replace } from "../dom.js";
import { clock, count, cut, duration, size, visible } from "../format.js";
import { confirmed } from "../parts/dialogs.js";
import { may } from "../session.js";
import { button, facts, field, stateOf } from "../parts/pieces.js";

export function open() {
  const list = h("div", { class: "stack" });
  const empty = h("p", { class: "empty", hidden: true }, "There are no connectors: ", h("code", null, "headgate connector create"), " makes one.");
  return {
    title: "Connectors",
    element: h("div", { class: "page" }, empty, list),
    update(overview) {
      empty.hidden = overview.connectors.length > 0;
      keyed(list, overview.connectors, (one) => one.name, make, update);
    },
  };
}

function make(connector) {
  const parts = {
    state: h("span"),
    words: h("div"),
    facts: h("div"),
    acts: h("div", { class: "steps" }),
  };
  const element = h(
    "section",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", null, connector.name), h("div", { class: "tools" }, parts.state)),
    parts.words,
    parts.facts,
    parts.acts,
  );
  element.parts = parts;
  return element;
}

function update(element, one) {
  const { parts } = element;
  replace(parts.state, stateOf(one.state));
  replace(
    parts.words,
    one.reason ? h("p", { class: "advice" }, one.reason) : null,
    one.warning ? h("p", { class: "advice warn" }, one.warning) : null,
  );
  replace(
    parts.facts,
    facts([
      ["Type", one.type],
      ["Read by", one.node ?? "nobody"],
      ["Feeds", one.topics.map((fed) => `${fed.topic} (${fed.patterns.join(", ")})${fed.exists ? "" : ", which is gone"}`).join("; ")],
      ["Behind", behind(one)],
      ["Taken", `${count(one.taken)}, ${count(one.left_out)} left out`],
      ["History at the origin", one.history_ms === null ? "" : duration(one.history_ms)],
      ["Kept for it", one.held_bytes === null ? "" : size(one.held_bytes)],
      ["Position", one.position ? h("bdi", null, visible(cut(one.position, 120))) : ""],
      ["Stopped at", one.stopped_at ? `${cut(one.stopped_at, 120)} ${one.stopped_what}` : ""],
      ["Snapshots", one.snapshots.length ? h("ul", { class: "plain" }, one.snapshots.map((snapshot) => h("li", null, snapshotWords(snapshot)))) : ""],
      ["Left out", one.skipped.map((skipped) => `${skipped.what} (${clock(skipped.time_ms)})`).join("; ")],
    ]),
  );
  const acts = `${one.paused} ${one.stopped_at} ${one.snapshots.length > 0}`;
  if (element.dataset.acts === acts) return;
  attribute(element, "data-acts", acts);
  if (!may("write:connectors")) return;
  replace(
    parts.acts,
    one.paused
      ? button("Resume…", () => simple(one.name, "resume", "Resume", "It goes on where it stopped."))
      : button("Pause…", () => simple(one.name, "pause", "Pause", "It reads nothing more until it is resumed; its origin keeps the changes as long as its history lasts.")),
    button("Take a snapshot…", () => snapshot(one)),
    one.snapshots.length ? button("End the snapshots…", () => endSnapshots(one)) : null,
    button("Begin elsewhere…", () => reset(one), "danger"),
    one.stopped_at ? button("Leave that change out…", () => skip(one), "danger") : null,
  );
}

function behind(one) {
  const parts = [
    one.lag_ms === null ? "" : duration(one.lag_ms),
    one.lag_records === null ? "" : `${count(one.lag_records)} changes`,
  ].filter(Boolean);
  return parts.length ? parts.join(", ") : "nobody can tell now";
}

function simple(name, what, action, meaning) {
  return confirmed({
    title: `${action} ${name}`,
    action,
    preview: () => h("p", null, meaning),
    act: async () => {
      const now = await post(path`/v1/connectors/${name}/`.concat(what), undefined);
      return `It is ${now.state} now.`;
    },
  });
}

function reset(connector) {
  const input = h("input", { name: "to", value: "now", autocomplete: "off", spellcheck: "false" });
  const fields = h(
    "div",
    null,
    field("Begin at", input, "now, a time with its zone such as 2026-01-31T12:00:00Z, a position, or snapshot: now, with what is there"),
  );
  return confirmed({
    title: `Let ${connector.name} begin elsewhere`,
    action: "Begin there",
    danger: true,
    fields,
    preview: () => ({
      content: h(
        "p",
        null,
        `It forgets where it is (${cut(connector.position || "nowhere yet", 120)}) and begins at ${input.value || "…"}. What lies between is left out, or comes again; subscribers hear a resync where changes are left out.`,
      ),
      possible: Boolean(input.value.trim()),
    }),
    act: async () => {
      const now = await post(path`/v1/connectors/${connector.name}/reset`, { to: input.value.trim() });
      return `It begins there; it is ${now.state} now.`;
    },
  });
}

/** Which one it is, and how far. */
function snapshotWords(one) {
  const what = one.collections.length ? visible(cut(one.collections.join(", "), 300)) : "everything";
  const rows = `${count(one.rows)}${one.expected === null ? "" : ` of about ${count(one.expected)}`} rows`;
  switch (one.state) {
    case "waiting":
      return `${what}: waiting`;
    case "failing":
      return `${what}: ${one.reason}; it is tried again`;
    case "comparing":
      return `${what}: ${rows}, looking for what is gone`;
    default:
      return `${what}: ${rows}${one.collection ? `, in ${visible(cut(one.collection, 120))}` : ""} (${count(one.through)} of ${count(one.of)} done)`;
  }
}

function snapshot(connector) {
  const only = h("input", { name: "collections", autocomplete: "off", spellcheck: "false" });
  const named = () => only.value.split(",").map((one) => one.trim()).filter(Boolean);
  const hint = "tables or collections, with commas between; empty: all that it reads";
  return confirmed({
    title: `Take a snapshot by ${connector.name}`,
    action: "Take it",
    fields: h("div", null, field("Only", only, hint)),
    preview: () =>
      h(
        "p",
        null,
        `What ${named().length ? visible(cut(named().join(", "), 300)) : "all that it reads"} holds is read beside the changes, and comes as records with the operation read. Subscribers get those that they want.`,
      ),
    act: async () => {
      await post(path`/v1/connectors/${connector.name}/snapshot`, { collections: named() });
      return "It is asked for; this page shows how far it is.";
    },
  });
}

function endSnapshots(connector) {
  return confirmed({
    title: `End the snapshots of ${connector.name}`,
    action: "End them",
    danger: true,
    preview: () => h("p", null, "What was read stays; the rest of it isn't read. Changes are read as before."),
    act: async () => {
      await remove(path`/v1/connectors/${connector.name}/snapshot`);
      return "It reads changes alone.";
    },
  });
}

function skip(connector) {
  return confirmed({
    title: `Leave a change of ${connector.name} out`,
    action: "Leave it out",
    danger: true,
    preview: () => h("p", null, `${connector.stopped_what || "The change"} at ${connector.stopped_at} will never come; the connector goes on behind it.`),
    act: async () => {
      const now = await post(path`/v1/connectors/${connector.name}/skip`, { position: connector.stopped_at });
      return `It is ${now.state} now.`;
    },
  });
}
