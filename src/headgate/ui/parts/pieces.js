// What several pages show alike.

import { h, keyed, text } from "../dom.js";
import { brief, instant } from "../format.js";

const MARKS = { good: "✓", warn: "!", bad: "✕", busy: "↻", idle: "–", advice: "i" };

/** How something is, as a word with a colour and a mark of its own: colour alone says nothing. */
export function state(words, kind) {
  const mark = h("span", { class: "mark", "aria-hidden": "true" }, MARKS[kind] ?? "");
  return h("span", { class: `state ${kind}` }, mark, words);
}

export const KINDS = {
  ready: "good",
  starting: "busy",
  draining: "warn",
  lost: "bad",
  healthy: "good",
  degraded: "warn",
  unhealthy: "bad",
  lagging: "warn",
  stale: "bad",
  failed: "bad",
  running: "good",
  paused: "idle",
  waiting: "warn",
  retrying: "warn",
  snapshot: "busy",
  stopped: "bad",
  "history-lost": "bad",
  connected: "good",
  dead: "bad",
  parked: "warn",
};

export function stateOf(word) {
  return state(word, KINDS[word] ?? "idle");
}

/** When something in a list was: pointing at it says it to the millisecond. */
export function when(ms) {
  const [first, time] = brief(ms);
  if (first.includes(":")) return h("span", { title: instant(ms) }, first);
  const more = time ? h("span", { class: "roomy" }, ` ${time}`) : null;
  return h("span", { class: "dated", title: instant(ms) }, first, more);
}

/** A part of a page with a heading; `tools` stand beside it. */
export function card(title, tools, ...content) {
  return h(
    "section",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", null, title), h("div", { class: "tools" }, tools)),
    ...content,
  );
}

/** A table of few rows whose cells change in place. `columns`: [{title, class, cell(item)}], with
 * `about`, a sentence on what it has, where the title doesn't say it; one with buttons has `acts(item)`, a text that differs where they are others. */
export class Table {
  constructor({ label, columns, key, empty = "There are none." }) {
    this.columns = columns;
    this.key = key;
    this.body = h("tbody");
    this.empty = h("p", { class: "empty", hidden: true }, empty);
    this.table = h(
      "table",
      null,
      h("caption", { class: "unseen" }, label),
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          columns.map((one) => h("th", { scope: "col", class: one.class, title: one.about }, one.title)),
        ),
      ),
      this.body,
    );
    this.element = h(
      "div",
      { class: "table-frame", tabindex: "0", role: "region", "aria-label": label },
      this.table,
      this.empty,
    );
  }

  show(items) {
    this.empty.hidden = items.length > 0;
    this.table.hidden = !items.length;
    keyed(this.body, items, this.key, () => this.#row(), (row, item) => this.#fill(row, item));
  }

  #row() {
    return h(
      "tr",
      null,
      this.columns.map((one) => h("td", { class: one.class, "data-label": one.title })),
    );
  }

  #fill(row, item) {
    this.columns.forEach((column, index) => {
      const cell = row.children[index];
      // What acts is made anew only when it would act otherwise, so that it keeps the focus.
      const acts = column.acts?.(item);
      if (acts !== undefined && cell.dataset.acts === acts) return;
      const value = column.cell(item);
      if (acts !== undefined) cell.dataset.acts = acts;
      if (!(value instanceof Node)) text(cell, value ?? "");
      else if (acts !== undefined || !cell.firstChild?.isEqualNode(value)) cell.replaceChildren(value);
    });
  }
}

/** A labelled field of a form. */
export function field(label, input, hint) {
  return h(
    "label",
    { class: "field" },
    h("span", { class: "field-label" }, label),
    input,
    hint ? h("span", { class: "hint" }, hint) : null,
  );
}

export function select(name, choices, value) {
  return h(
    "select",
    { name },
    choices.map(([key, words]) => h("option", { value: key, selected: key === value }, words)),
  );
}

export function button(words, act, kind = "") {
  return h("button", { type: "button", class: kind || null, on: { click: act } }, words);
}

/** Facts as pairs of a name and a value (text or node). */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}
