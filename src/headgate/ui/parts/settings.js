// What a node runs with, and where each value came from.

import { get } from "../api.js";
import { h, replace, text } from "../dom.js";
import { count, plural, visible } from "../format.js";
import { failed, showDialog } from "./dialogs.js";
import { card, facts, field } from "./pieces.js";
import { VirtualList } from "./virtual_list.js";

const DEFAULT = "default";

/** A card; `nodes(list)` tells it who is there, `close()` that nobody looks any more. */
export function settingsCard() {
  let every = [];
  let shown = [];
  let asking = null;
  const said = h("p", { class: "figure-note", role: "status" });
  const node = h("select", { name: "node", on: { change: () => ask(node.value) } });
  const search = h("input", { type: "search", placeholder: "part of a name", on: { input: () => show() } });
  const onlySet = h("input", { type: "checkbox", on: { change: () => show() } });
  const list = new VirtualList({
    label: "Settings",
    columns: [
      { title: "Setting", class: "wide mono" },
      { title: "Value", class: "wide mono" },
      { title: "Set by", class: "wide roomy" },
    ],
    cells: (index) => row(shown[index]),
    open: (index) => showWhole(shown[index]),
    height: 380,
  });

  async function ask(name) {
    asking?.abort();
    const mine = (asking = new AbortController());
    try {
      const found = await get("/v1/settings", { node: name }, { signal: mine.signal });
      every = found.settings;
      know(found.node);
      node.value = found.node;
      show();
    } catch (error) {
      if (mine.signal.aborted) return;
      every = [];
      show();
      replace(said, failed(error));
    }
  }

  function show() {
    const words = search.value.trim();
    shown = every.filter(
      (one) => one.key.includes(words) && !(onlySet.checked && one.origin === DEFAULT),
    );
    const set = every.filter((one) => one.origin !== DEFAULT).length;
    text(said, `${plural(every.length, "setting")}, of which ${count(set)} ${set === 1 ? "isn't" : "aren't"} the default`);
    list.show(shown.length);
  }

  function know(name) {
    if (![...node.options].some((one) => one.value === name)) node.append(h("option", { value: name }, name));
  }

  ask("");
  return {
    element: card(
      "Settings",
      null,
      h(
        "div",
        { class: "filters" },
        field("Node", node),
        field("Search", search),
        h("label", { class: "check" }, onlySet, " only what somebody has set"),
      ),
      said,
      list.element,
    ),
    nodes: (nodes) => nodes.forEach((one) => know(one.id)),
    close: () => asking?.abort(),
  };
}

/** What a row has no room for. */
function showWhole({ key, value, origin }) {
  const content = h(
    "div",
    { class: "dialog-body" },
    facts([
      ["Value", h("code", null, value === "" ? "–" : visible(value))],
      ["Set by", visible(origin)],
    ]),
  );
  showDialog({ title: key, content });
}

function row({ key, value, origin }) {
  const isSet = origin !== DEFAULT;
  const plain = (words) => h(isSet ? "b" : "span", { class: isSet ? null : "soft" }, visible(words));
  return [key, plain(value === "" ? "–" : value), plain(origin)].map((one, index) =>
    index ? h("span", { title: index === 1 ? visible(value) : visible(origin) }, one) : one,
  );
}
