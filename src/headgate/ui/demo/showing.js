/** Puts what is known on the page. Everything is set as text; what hasn't changed isn't touched. */

const number = (value) => Math.round(value).toLocaleString("en");

export function show(id, text) {
  const shown = document.getElementById(id);
  if (shown.textContent !== text) shown.textContent = text;
}

export function showBooks(view) {
  for (const [id, count] of [
    ["lost", view.skipped],
    ["duplicated", view.duplicates],
    ["out-of-order", view.out_of_order],
  ]) {
    show(id, number(count));
    document.getElementById(id).classList.toggle("more", count > 0);
  }
  show("delivered", number(view.delivered));
  show("per-second", number(view.delivered_per_s));
  show("on-their-way", number(view.missing));
  show("latency", view.p99_ms ? `${duration(view.p50_ms)} / ${duration(view.p99_ms)}` : "–");
  const of = view.total_s ? ` of ${number(view.total_s)}` : "";
  show("phase", `${view.phase}, ${number(Math.max(0, view.elapsed_s))}${of} s`);
}

function duration(ms) {
  if (ms < 1) return "<1";
  return ms < 10 ? ms.toFixed(1) : number(ms);
}

/** As many children as there are items, each the same element as before. */
function fill(parent, items, make, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    if (index >= parent.children.length) parent.append(make(item));
    update(parent.children[index], item);
  });
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function put(shown, text) {
  if (shown.textContent !== text) shown.textContent = text;
}

export function showLegend(entries) {
  fill(
    document.querySelector("#legend"),
    entries,
    () => element("li", element("i"), element("span")),
    ({ children: [mark, name] }, [colour, text]) => {
      mark.className = colour;
      put(name, text);
    },
  );
}

export function showRoles(roles) {
  fill(
    document.querySelector("#roles"),
    roles,
    () => element("tr", element("td"), element("td", element("span"))),
    ({ children: [name, state] }, { name: role, pid }) => {
      put(name, role);
      state.firstChild.className = pid ? "status good" : "status bad";
      put(state.firstChild, pid ? `serves, pid ${pid}` : "being started again");
    },
  );
}

const SUBSCRIBERS = ["subscriber", "filter", "matched", "delivered", "per s"];
const CONSUMERS = ["consumer", "targets", "", "received", "per s"];

export function showListeners({ subscribers, consumers }) {
  const isGroup = consumers.length > 0;
  const head = document.querySelector("#listeners-head");
  fill(head, [isGroup ? CONSUMERS : SUBSCRIBERS], () => element("tr"), (row, titles) =>
    fill(row, titles, () => cell("th"), (one, title) => {
      put(one, title);
      one.className = titles.indexOf(title) > 1 ? "number" : "";
    }),
  );
  const rows = isGroup
    ? consumers.map((one, index) => [
        `series-${(index % 8) + 1}`,
        one.name,
        one.left ? "has left" : one.targets.join(", ") || "none",
        "",
        number(one.received),
        number(one.per_s),
      ])
    : subscribers.map((one) => [
        "",
        one.name,
        one.where ?? "(none)",
        number(one.matched),
        number(one.delivered),
        number(one.per_s),
      ]);
  fill(document.querySelector("#listeners"), rows, listener, (row, [colour, ...texts]) => {
    row.firstChild.firstChild.className = colour;
    put(row.firstChild.lastChild, texts[0]);
    texts.slice(1).forEach((text, index) => put(row.children[index + 1], text));
  });
}

function listener() {
  const cells = [element("td", element("i"), element("span")), cell("td", "mono")];
  return element("tr", ...cells, ...[1, 2, 3].map(() => cell("td", "number")));
}

function cell(name, className = "") {
  const made = element(name);
  made.className = className;
  if (name === "th") made.scope = "col";
  return made;
}

export function showDares(dares, take) {
  fill(
    document.querySelector("#dares"),
    dares,
    ({ name, title }) => {
      const button = element("button", title);
      button.type = "button";
      button.className = "danger";
      button.dataset.dare = name;
      button.addEventListener("click", () => take(name));
      const made = element("div", button, element("small"));
      made.className = "dare";
      return made;
    },
    ({ children: [button, about] }, dare) => {
      button.disabled = Boolean(dare.under_way);
      put(about, dare.under_way || dare.about);
    },
  );
}

export function showTold(told) {
  if (!told.length) return;
  fill(
    document.querySelector("#told"),
    told.toReversed(),
    () => element("li", element("time"), element("span")),
    (line, { at_s, text }) => {
      if (line.children.length !== 2) {
        line.className = "";
        line.replaceChildren(element("time"), element("span"));
      }
      put(line.firstChild, `${at_s.toFixed(1)} s`);
      put(line.lastChild, text);
    },
  );
}
