/**
 * The map: Europe, and aircraft that are put where their last report says. It keeps one element per
 * aircraft and draws at most once per frame, however many reports come.
 */

import { BOUNDS, COASTS, PLACES } from "./europe.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1000;
const SHAPE = "M0-8 5.5 8 0 4.5-5.5 8Z";
const degrees = Math.PI / 180;
const north = (lat) => Math.log(Math.tan(Math.PI / 4 + (lat * degrees) / 2));
const SCALE = WIDTH / ((BOUNDS.east - BOUNDS.west) * degrees);
const HEIGHT = (north(BOUNDS.north) - north(BOUNDS.south)) * SCALE;

/** Mercator, as on every map of a browser. */
function place(lon, lat) {
  return [(lon - BOUNDS.west) * degrees * SCALE, (north(BOUNDS.north) - north(lat)) * SCALE];
}

function element(name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const rounded = (numbers) => numbers.map((one) => one.toFixed(1)).join(" ");

export class AircraftMap {
  #crafts = new Map();
  #changed = new Set();
  #isAsked = false;
  #colourOf = () => "series-1";
  #layer = element("g");
  #chosen = "";
  #onChosen;

  /** `onChosen` gets the report of the aircraft that is pointed at, or undefined. */
  constructor(svg, onChosen) {
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT.toFixed(0)}`);
    svg.append(...coasts(), ...grid(), ...places(), this.#layer);
    const point = ({ target }) => {
      const key = target.closest?.(".craft")?.dataset.key;
      if (key) this.#choose(key);
    };
    svg.addEventListener("pointerover", point);
    svg.addEventListener("click", point);
    this.#onChosen = onChosen;
  }

  get size() {
    return this.#crafts.size;
  }

  get reports() {
    return [...this.#crafts.values()].map(({ report }) => report);
  }

  colourBy(colourOf) {
    this.#colourOf = colourOf;
    for (const key of this.#crafts.keys()) this.#changed.add(key);
    this.#draw();
  }

  put(key, report) {
    let craft = this.#crafts.get(key);
    if (!craft) {
      craft = { report, group: element("g", { class: "craft" }), shape: element("path", { d: SHAPE }) };
      craft.group.dataset.key = key;
      craft.group.append(craft.shape);
      this.#crafts.set(key, craft);
    }
    craft.report = report;
    this.#changed.add(key);
    this.#draw();
  }

  remove(key) {
    this.#crafts.get(key)?.group.remove();
    this.#crafts.delete(key);
    this.#changed.delete(key);
  }

  /** Takes away those whose last report `isOld`: that they left was said to nobody. */
  removeOld(isOld) {
    for (const [key, { report }] of this.#crafts) if (isOld(report)) this.remove(key);
  }

  clear() {
    for (const key of [...this.#crafts.keys()]) this.remove(key);
  }

  #choose(key) {
    this.#crafts.get(this.#chosen)?.group.classList.remove("chosen");
    this.#chosen = key;
    const craft = this.#crafts.get(key);
    craft?.group.classList.add("chosen");
    this.#onChosen(craft?.report);
  }

  #draw() {
    if (this.#isAsked) return;
    this.#isAsked = true;
    requestAnimationFrame(() => {
      this.#isAsked = false;
      for (const key of this.#changed) this.#move(key, this.#crafts.get(key));
      this.#changed.clear();
    });
  }

  #move(key, craft) {
    const { report, group, shape } = craft;
    const [x, y] = place(report.lon, report.lat);
    group.setAttribute("transform", `translate(${rounded([x, y])})`);
    shape.setAttribute("transform", `rotate(${report.heading})`);
    shape.setAttribute("class", this.#colourOf(key, report));
    const rings = isEmergency(report);
    if (rings !== Boolean(craft.ring)) {
      craft.ring?.remove();
      craft.ring = rings ? element("circle", { r: 13, class: "ring" }) : undefined;
      if (craft.ring) group.append(craft.ring);
    }
    if (!group.isConnected) this.#layer.append(group);
    if (key === this.#chosen) this.#onChosen(report);
  }
}

export function isEmergency({ squawk }) {
  return squawk === "7500" || squawk === "7600" || squawk === "7700";
}

function coasts() {
  return COASTS.map((coast) => {
    const points = coast.split(" ").map((point) => rounded(place(...point.split(",").map(Number))));
    return element("path", { class: "land", d: `M${points.join("L")}Z` });
  });
}

function grid() {
  const lines = [];
  for (let lon = -10; lon <= 25; lon += 5) lines.push([place(lon, BOUNDS.south), place(lon, BOUNDS.north)]);
  for (let lat = 40; lat <= 60; lat += 5) lines.push([place(BOUNDS.west, lat), place(BOUNDS.east, lat)]);
  return lines.map(([from, to]) => element("path", { class: "grid", d: `M${rounded(from)}L${rounded(to)}` }));
}

function places() {
  return PLACES.flatMap(([name, lon, lat]) => {
    const [x, y] = place(lon, lat);
    const text = element("text", { class: "place-name", x: (x + 7).toFixed(1), y: (y - 6).toFixed(1) });
    text.textContent = name;
    return [element("circle", { class: "place", r: 2.5, cx: x.toFixed(1), cy: y.toFixed(1) }), text];
  });
}
