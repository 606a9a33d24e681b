// Why a record did, or didn't, reach somebody: the answer of /v1/explain in words.

import { h } from "../dom.js";
import { count, cut, instant, plural, visible } from "../format.js";
import { state } from "./pieces.js";

const ATTEMPTS = 20;
const GOOD = new Set(["delivered", "processed", "matches", "settled", "match"]);
const BUSY = new Set(["in_hand", "waiting", "catching_up", "on_the_way", "unread", "held"]);
const BAD = new Set(["dead", "filter_failed", "failed", "corrupt", "missing", "gone"]);
const WARN = new Set(["parked", "skipped", "no_consumer"]);

function kindOf(status) {
  if (GOOD.has(status)) return "good";
  if (BAD.has(status)) return "bad";
  if (WARN.has(status)) return "warn";
  return BUSY.has(status) ? "busy" : "idle";
}

function status(word) {
  return state(word.replaceAll("_", " "), kindOf(word));
}

export function explanationView(told) {
  return [
    h("p", null, status(told.status), " ", told.why),
    ...(told.subscriptions ?? []).map((one) => reader(one, one.id)),
    ...(told.groups ?? []).map((one) => reader(one, `group ${one.name}`)),
    told.more ? h("p", { class: "figure-note" }, `${count(told.examined ?? 0)} subscriptions were asked, not all of them.`) : null,
    attempts(told.attempts ?? []),
    evidence(told.evidence ?? {}),
  ];
}

function reader(one, name) {
  return h(
    "details",
    { class: "reader" },
    h("summary", null, status(one.status), " ", h("bdi", null, visible(cut(name, 120))), `: ${one.why}`),
    one.where ? h("p", null, h("code", null, visible(cut(one.where, 1_000)))) : null,
    one.route ? h("p", null, one.route) : null,
    conditions(one.conditions ?? []),
    attempts(one.attempts ?? []),
  );
}

function conditions(every) {
  if (!every.length) return null;
  return h(
    "ul",
    { class: "plain" },
    every.map((one) =>
      h(
        "li",
        null,
        status(one.verdict),
        " ",
        h("code", null, visible(cut(one.condition, 300))),
        (one.values ?? []).map((value) => h("span", { class: "soft" }, ` ${valueWords(value)}`)),
        one.why ? ` (${one.why})` : "",
      ),
    ),
  );
}

function valueWords({ field, value, missing, masked }) {
  if (missing) return `${field} is missing`;
  return masked ? `${field} is masked` : `${field} is ${visible(value ?? "")}`;
}

function attempts(every) {
  if (!every.length) return null;
  const shown = every.slice(-ATTEMPTS);
  return h(
    "ul",
    { class: "plain soft" },
    every.length > shown.length ? h("li", null, `${plural(every.length, "attempt")}, the last ones:`) : null,
    shown.map((one) =>
      h("li", null, `${instant(one.at_ms)} ${one.gateway}: ${one.outcome.replaceAll("_", " ")}${one.error ? ` (${visible(cut(one.error, 300))})` : ""}`),
    ),
  );
}

function evidence({ complete_since_ms: since, silent, notes }) {
  const words = [
    since ? `What was tried is known since ${instant(since)}.` : "",
    silent?.length ? `Nothing was heard from ${silent.join(", ")}.` : "",
    ...(notes ?? []),
  ].filter(Boolean);
  return words.length ? h("p", { class: "figure-note" }, words.join(" ")) : null;
}
