// Curves of the last minutes.

import { attribute, svg } from "../dom.js";

const WIDTH = 200;
const HEIGHT = 44;

/** A curve without axes; its figures stand beside it. `label` says what it is of. */
export class Sparkline {
  constructor(label) {
    this.area = svg("path", { class: "spark-area" });
    this.line = svg("path", { class: "spark-line" });
    this.element = svg(
      "svg",
      {
        class: "spark",
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": label,
      },
      this.area,
      this.line,
    );
  }

  /** `values` from old to new, null where nothing is known; there is room for `room` of them. */
  show(values, room = 120) {
    const shown = values.slice(-room);
    const top = Math.max(1e-9, ...shown.map((one) => one ?? 0)) * 1.1;
    const x = (index) => WIDTH - ((shown.length - 1 - index) * WIDTH) / (room - 1);
    const y = (value) => HEIGHT - 1 - (value / top) * (HEIGHT - 3);
    let line = "";
    let area = "";
    let begun = null;
    shown.forEach((value, index) => {
      if (value === null) {
        if (begun !== null) area += `L${x(index - 1).toFixed(1)},${HEIGHT}Z`;
        begun = null;
        return;
      }
      const point = `${x(index).toFixed(1)},${y(value).toFixed(1)}`;
      line += `${begun === null ? "M" : "L"}${point}`;
      area += begun === null ? `M${x(index).toFixed(1)},${HEIGHT}L${point}` : `L${point}`;
      begun ??= index;
    });
    if (begun !== null) area += `L${WIDTH},${HEIGHT}Z`;
    attribute(this.line, "d", line || "M0,0");
    attribute(this.area, "d", area || "M0,0");
  }
}
