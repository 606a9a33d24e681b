// A document as a tree. Bounded whatever it is: ten thousand fields, a megabyte of text, a hundred
// levels. What isn't shown is counted, and a button brings more.

import { h } from "../dom.js";
import { ExactNumber } from "../exact_json.js";
import { count, cut, plural, visible } from "../format.js";

const FIELDS = 100;
const TEXT = 1_000;
const TEXT_MORE = 20_000;
const OPEN_LEVELS = 3;
const OPEN_FIELDS = 40;

export function jsonView(value) {
  return h("div", { class: "json", dir: "ltr" }, view(value, 0));
}

function view(value, level) {
  if (value === null) return h("span", { class: "json-null" }, "null");
  if (value instanceof ExactNumber) return h("span", { class: "json-number" }, value.source);
  switch (typeof value) {
    case "string":
      return textView(value);
    case "object":
      return branch(value, level);
    default:
      return h("span", { class: `json-${typeof value}` }, String(value));
  }
}

function textView(value) {
  const shown = h("span", { class: "json-string" });
  const show = (most) => {
    shown.textContent = JSON.stringify(visible(cut(value, most))).replaceAll("\\\\u", "\\u");
  };
  show(TEXT);
  if (value.length <= TEXT) return shown;
  const rest = Math.min(value.length, TEXT_MORE);
  const more = button(`show ${count(rest)} of ${count(value.length)} characters`, () => {
    show(TEXT_MORE);
    more.remove();
  });
  return h("span", null, shown, " ", more);
}

function branch(value, level) {
  const isList = Array.isArray(value);
  const entries = isList ? [...value.entries()] : Object.entries(value);
  const [open, close] = isList ? "[]" : "{}";
  if (!entries.length) return h("span", null, open + close);
  const body = h("div", { class: "json-branch" });
  const details = h(
    "details",
    null,
    h(
      "summary",
      null,
      open,
      h("span", { class: "json-count" }, ` ${plural(entries.length, isList ? "item" : "field")} `),
      close,
    ),
    body,
  );
  let filled = false;
  const fill = () => {
    if (!filled) addSome(body, entries, 0, isList, level);
    filled = true;
  };
  details.addEventListener("toggle", () => details.open && fill());
  if (level < OPEN_LEVELS && entries.length <= (level ? OPEN_FIELDS : Infinity)) {
    details.open = true;
    fill();
  }
  return details;
}

function addSome(body, entries, from, isList, level) {
  for (const [name, value] of entries.slice(from, from + FIELDS)) {
    const label = isList ? h("span", { class: "json-index" }, name) : nameView(name);
    body.append(h("div", { class: "json-entry" }, label, ": ", view(value, level + 1)));
  }
  const left = entries.length - from - FIELDS;
  if (left <= 0) return;
  const more = button(`show ${count(Math.min(left, FIELDS))} more of ${count(left)}`, () => {
    more.remove();
    addSome(body, entries, from + FIELDS, isList, level);
  });
  body.append(more);
}

function nameView(name) {
  return h("bdi", { class: "json-name" }, visible(cut(name, 200)));
}

function button(words, act) {
  return h("button", { class: "link", type: "button", on: { click: act } }, words);
}
