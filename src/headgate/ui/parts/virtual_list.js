// A table of any length that only has the rows that are seen. Rows have one height; the scrolling
// element is a table to assistive technology, with the true number of rows. Arrow keys, Page Up and
// Down, Home and End move between rows, Enter opens one.

import { attribute, h, text } from "../dom.js";

const BEYOND = 8;

export class VirtualList {
  #rows = new Map();
  #count = 0;
  #current = 0;
  #frame = 0;

  /** `columns`: [{title, class}]; `cells(index)`: what is in the row, one per column, each a text or
   * a node, or null while it isn't known; `open(index)`: what Enter and a click do; `needed(from,
   * to)` hears which rows are seen. */
  constructor({ label, columns, cells, open = null, needed = null, rowHeight = 32, height = 420 }) {
    this.columns = columns;
    this.cells = cells;
    this.open = open;
    this.needed = needed;
    this.rowHeight = rowHeight;
    this.space = h("div", { class: "virtual-space", role: "rowgroup" });
    this.scroller = h(
      "div",
      { class: "virtual-scroller", role: "presentation", on: { scroll: () => this.#later() } },
      this.space,
    );
    this.head = h(
      "div",
      { class: "virtual-row virtual-head", role: "row" },
      columns.map((one) =>
        h("div", { class: `cell ${one.class ?? ""}`, role: "columnheader" }, one.title),
      ),
    );
    this.element = h(
      "div",
      {
        class: "virtual",
        role: open ? "grid" : "table",
        "aria-label": label,
        tabindex: "0",
        on: { keydown: (event) => this.#key(event), click: (event) => this.#click(event) },
      },
      this.head,
      this.scroller,
    );
    this.scroller.style.maxHeight = `${height}px`;
    new ResizeObserver(() => this.#later()).observe(this.scroller);
  }

  /** There are so many rows now, and any of them may have changed. */
  show(count) {
    this.#count = count;
    this.#current = Math.min(this.#current, Math.max(0, count - 1));
    this.space.style.height = `${count * this.rowHeight}px`;
    attribute(this.element, "aria-rowcount", count + 1);
    this.#draw();
  }

  toTop() {
    this.scroller.scrollTop = 0;
    this.#current = 0;
    this.#draw();
  }

  #later() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #draw() {
    const { scrollTop, clientHeight } = this.scroller;
    const from = Math.max(0, Math.floor(scrollTop / this.rowHeight) - BEYOND);
    const seen = Math.ceil((clientHeight || 420) / this.rowHeight) + 2 * BEYOND;
    const to = Math.min(this.#count, from + seen);
    for (const [index, row] of this.#rows) {
      if (index < from || index >= to) {
        row.remove();
        this.#rows.delete(index);
      }
    }
    for (let index = from; index < to; index += 1) this.#fill(index);
    if (to > from) this.needed?.(from, to);
  }

  #fill(index) {
    let row = this.#rows.get(index);
    if (!row) {
      row = h(
        "div",
        { class: "virtual-row", role: "row", "aria-rowindex": index + 2 },
        this.columns.map((one) =>
          h("div", { class: `cell ${one.class ?? ""}`, role: this.open ? "gridcell" : "cell" }),
        ),
      );
      row.dataset.index = index;
      row.style.transform = `translateY(${index * this.rowHeight}px)`;
      row.style.height = `${this.rowHeight}px`;
      this.#rows.set(index, row);
      this.space.append(row);
    }
    row.classList.toggle("current", Boolean(this.open) && index === this.#current);
    const cells = this.cells(index);
    [...row.children].forEach((cell, column) => {
      const value = cells?.[column] ?? (cells ? "" : "…");
      if (value instanceof Node) cell.replaceChildren(value);
      else text(cell, value);
    });
  }

  #click(event) {
    const row = event.target.closest("[data-index]");
    if (!row || !this.open || event.target.closest("a, button, input")) return;
    this.#go(Number(row.dataset.index));
    this.open(this.#current);
  }

  #key(event) {
    if (event.target !== this.element || !this.#count) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (event.key in steps) this.#go(this.#current + steps[event.key]);
    else if (event.key === "Home") this.#go(0);
    else if (event.key === "End") this.#go(this.#count - 1);
    else if (event.key === "Enter" && this.open) this.open(this.#current);
    else return;
    event.preventDefault();
  }

  #go(index) {
    this.#current = Math.max(0, Math.min(this.#count - 1, index));
    const top = this.#current * this.rowHeight;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight) {
      this.scroller.scrollTop = top + this.rowHeight - clientHeight;
    }
    this.#draw();
  }
}
