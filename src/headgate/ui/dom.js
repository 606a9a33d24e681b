// Elements, made from values. Text only ever becomes a text node, so nothing that a document or a
// name contains is taken for markup; styles are classes or set through the CSSOM, which the content
// security policy allows.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `props`: attributes, `on: {event: handler}`, `class`; null and false are left
 * out, true is an empty attribute. Children: nodes, texts, numbers, lists of them; null is nothing. */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** The same in SVG. */
export function svg(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else {
      attribute(element, name, value);
    }
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** Sets an attribute where it isn't so already; null and false take it away. */
export function attribute(element, name, value) {
  const wanted = value === true ? "" : value;
  if (wanted === null || wanted === undefined || wanted === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(wanted)) {
    element.setAttribute(name, wanted);
  }
}

/** Sets the text of an element where it isn't that already. */
export function text(element, value) {
  const wanted = String(value);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** These children and no others. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Brings the children of `parent` to one per item, in their order, and keeps those that are there:
 * focus and selection stay where they are. `make(item)` returns an element, `update(element, item)`
 * brings it up to date. */
export function keyed(parent, items, key, make, update) {
  const known = (parent.keyedChildren ??= new Map());
  const wanted = new Set(items.map(key));
  for (const [name, element] of known) {
    if (!wanted.has(name)) {
      element.remove();
      known.delete(name);
    }
  }
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    let element = known.get(name);
    if (element === undefined) {
      element = make(item);
      known.set(name, element);
    }
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
    update?.(element, item);
  }
}

/** A sentence whose `commands` between backticks look like commands. */
export function sentence(words) {
  return words
    .split("`")
    .map((part, index) => (index % 2 ? h("code", null, part) : document.createTextNode(part)));
}

let ids = 0;

/** A name for an element that another one refers to. */
export function freshId(what) {
  ids += 1;
  return `${what}-${ids}`;
}
