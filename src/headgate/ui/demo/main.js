/**
 * The demo's page. What moves on the map comes through /client.js, as to any page; the books
 * and the buttons are the demo's, which is asked at an address of its own: so they are there while
 * the gateway isn't.
 */

import { Headgate } from "/client.js";
import { demoAt } from "./booth.js";
import { Following } from "./following.js";
import { AircraftMap, isEmergency } from "./map.js";
import { show, showBooks, showDares, showLegend, showListeners, showRoles, showTold } from "./showing.js";
import { Owners } from "./targets.js";

const EXAMPLES = [
  ["everything", ""],
  ["low", "altitude < 3000"],
  ["emergencies", 'squawk in ["7500", "7600", "7700"]'],
  ["an airline, fast", 'callsign.startsWith("HG1") && speed > 300'],
  ["round Munich", "lat > 47 && lat < 50 && lon > 9 && lon < 14"],
];
const COLOURS = 8;
const BY_FLIGHT = [
  ["series-1", "cruising"],
  ["series-3", "climbing"],
  ["series-4", "descending"],
  ["series-2", "below 3,000 ft"],
  ["series-bad", "emergency"],
];

const owners = new Owners();
let shared = false; // whether consumers share the aircraft

function byFlight(key, report) {
  if (isEmergency(report)) return "series-bad";
  if (report.altitude < 3000) return "series-2";
  if (report.vertical_rate > 0) return "series-3";
  return report.vertical_rate < 0 ? "series-4" : "series-1";
}

function byOwner(key) {
  const owner = owners.of(key);
  return owner === undefined ? "" : `series-${(owner % COLOURS) + 1}`;
}

// --- the map, and the filter -------------------------------------------------------------------

const map = new AircraftMap(document.querySelector("#map"), (report) => {
  if (!report) return;
  const { callsign, icao, squawk, altitude, speed, heading } = report;
  const feet = altitude.toLocaleString("en");
  show("selected", `${callsign} (${icao}), squawk ${squawk}: ${feet} ft, ${speed} kt, heading ${heading}°`);
});

const headgate = new Headgate(undefined, {
  onState(state, reason) {
    const said = { live: "live", connecting: "connecting", idle: "not subscribed", waiting: `not connected: ${reason}` };
    const colour = { live: "good", waiting: "bad" }[state] ?? "soft";
    document.querySelector("#connection").className = `status ${colour}`;
    show("connection", said[state] ?? state);
  },
});
const following = new Following(headgate, map);

const input = document.querySelector("#filter");
let typed = 0;

/** As it was typed, or a place in it would be another one. */
function filter() {
  return input.value.trim() ? input.value : "";
}

function ask(where) {
  for (const button of document.querySelectorAll("#examples button")) {
    button.setAttribute("aria-pressed", String(button.dataset.where === where));
  }
  following.ask(where, showFault);
}

const SUBSCRIBED = "subscribed: nothing is missed from here on";
const LOG_IN = `log in at ${location.origin}/ui/, with what the terminal says; then reload this page`;

/** With the place of the fault below it, where that is known. */
function showFault(error) {
  const position = error?.details.position;
  input.setAttribute("aria-invalid", String(Boolean(error)));
  document.querySelector("#filter-says").classList.toggle("bad", Boolean(error));
  show("filter-place", Number.isInteger(position) ? `${" ".repeat(position)}^` : "");
  const isNobody = error?.code === "unauthorized";
  show("filter-error", isNobody ? LOG_IN : (error?.message ?? SUBSCRIBED));
}

input.addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => ask(filter()), 250);
});
document.querySelector("#filter-form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typed);
  ask(filter());
});
for (const [name, where] of EXAMPLES) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = where || name;
  button.title = name;
  button.dataset.where = where;
  button.addEventListener("click", () => {
    input.value = where;
    ask(where);
  });
  document.querySelector("#examples").append(button);
}

setInterval(() => {
  following.tick();
  show("aircraft", map.size.toLocaleString("en"));
  show("matches", following.matches.toLocaleString("en"));
  show("match-rate", following.perSecond.toLocaleString("en"));
  show("left", following.left.toLocaleString("en"));
}, 500);

// --- what the demo knows -----------------------------------------------------------------------

demoAt({
  onState({ view, dares, told }) {
    showBooks(view);
    showRoles(view.roles);
    showListeners(view);
    showDares(dares, (name) => this.take(name));
    showTold(told);
    const isShared = view.consumers.length > 0;
    if (!owners.learn(view.targets, view.consumers) && shared === isShared) return;
    shared = isShared;
    map.colourBy(shared ? byOwner : byFlight);
    showLegend(
      shared ? view.consumers.map((one, index) => [`series-${(index % COLOURS) + 1}`, one.name]) : BY_FLIGHT,
    );
  },
  onAway(isAway) {
    document.querySelector("#dares-away").hidden = !isAway;
    for (const button of document.querySelectorAll("#dares button")) button.disabled = isAway;
  },
});
map.colourBy(byFlight);
showLegend(BY_FLIGHT);
ask("");
