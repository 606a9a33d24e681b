// The frame of all pages: which one is shown, whether it is up to date, dark or light.

import { attribute, h, replace, text } from "./dom.js";
import { clock } from "./format.js";
import { live } from "./live.js";
import * as session from "./session.js";
import * as connectors from "./pages/connectors.js";
import * as group from "./pages/group.js";
import * as letters from "./pages/letters.js";
import * as nodes from "./pages/nodes.js";
import * as overview from "./pages/overview.js";
import * as records from "./pages/records.js";
import * as subscriptions from "./pages/subscriptions.js";
import * as topic from "./pages/topic.js";
import * as topics from "./pages/topics.js";
import * as topology from "./pages/topology.js";

const PAGES = [
  ["overview", "Overview", overview],
  ["topology", "Topology", topology],
  ["topics", "Topics", topics],
  ["subscriptions", "Subscriptions", subscriptions],
  ["letters", "Letters", letters],
  ["nodes", "Nodes", nodes],
  ["connectors", "Connectors", connectors],
];
/* A line that comes back at once is nothing to alarm the user about. */
const GRACE_MS = 2_000;

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const linkState = document.getElementById("link");
const nav = document.querySelector("nav");
const links = new Map(
  PAGES.map(([name, title]) => [name, h("a", { href: `#/${name}` }, title)]),
);
nav.append(...links.values());

let shown = null;

/** `#/topics/NAME/records?key=…` as {name, rest: [NAME, "records"], query} */
function routeOf(hash) {
  const [where, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [name = "", ...rest] = where.split("/").map(decoded);
  return { name: name || "overview", rest, query: new URLSearchParams(query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function pageOf({ name, rest }) {
  if (name === "topics" && rest[1] === "records") return records;
  if (name === "topics" && rest[0]) return topic;
  if (name === "groups") return rest.length === 2 ? group : null;
  return PAGES.find(([known]) => known === name)?.[2] ?? null;
}

/** Which link of the bar a page stands under. */
function tabOf({ name }) {
  return name === "groups" ? "subscriptions" : name;
}

function show() {
  const route = routeOf(location.hash);
  const isLoggedOut = session.isLoggedOut();
  const page = isLoggedOut ? session : pageOf(route);
  if (shown?.page === page && shown.open.route?.(route)) return;
  shown?.open.close?.();
  const open = isLoggedOut
    ? session.logInPage(loggedIn)
    : page?.open(route) ?? { title: "Not found", element: h("p", null, "There is no such page.") };
  nav.hidden = isLoggedOut;
  shown = { page, open };
  document.title = `${open.title} · Headgate`;
  replace(main, h("h1", { tabindex: "-1" }, open.heading ?? open.title), open.element);
  for (const [name, link] of links) {
    const isHere = name === tabOf(route);
    attribute(link, "aria-current", isHere ? "page" : null);
    // On a telephone the bar is wider than the screen.
    if (isHere) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  update();
}

function update() {
  if (live.overview?.totals) shown?.open.update?.(live.overview, live);
}

// --- who uses it --------------------------------------------------------------------------------

const account = h("button", { class: "quiet", type: "button", hidden: true });
document.getElementById("theme").before(account);
account.addEventListener("click", async () => {
  await session.logOut().catch(() => {});
  showAccount();
  show();
  live.again();
});

function showAccount() {
  account.hidden = !session.who();
  text(account, `log out ${session.who()}`);
}

function loggedIn() {
  showAccount();
  live.again();
  show();
}

// --- whether it is up to date -----------------------------------------------------------------

const FORBIDDEN = 403;
let graceTimer = 0;

function showLink() {
  const { link, overview: known } = live;
  const away = link.connected ? (known?.away ?? "") : "";
  clearTimeout(graceTimer);
  const lateMs = Date.now() - link.since;
  const isLost = !link.connected && lateMs >= GRACE_MS && !session.isLoggedOut();
  const isRefused = isLost && link.status === FORBIDDEN;
  if (!link.connected && !isLost) graceTimer = setTimeout(showLink, GRACE_MS - lateMs + 10);
  if (link.connected) text(linkState, away ? "connected, coordinator away" : "live");
  else text(linkState, isRefused ? "not granted" : isLost ? "not connected" : "connecting…");
  const isWarning = away || isRefused;
  linkState.className = `link-state ${isWarning ? "warn" : link.connected ? "good" : isLost ? "bad" : "busy"}`;
  document.body.classList.toggle("stale", isLost || Boolean(away));
  banner.hidden = !(isLost || away);
  if (banner.hidden) return;
  text(banner, isRefused ? unseen(link) : trouble(link, away, known));
}

/** Nothing is wrong: the principal that is logged in isn't granted what these pages show. */
function unseen({ why }) {
  const records = `${location.origin}/ui/#/topics/NAME/records`;
  return `You can't see how the system fares: ${why}. The records of a topic that you may follow are at ${records}.`;
}

function trouble(link, away, known) {
  const seen = known?.seen_ms ? ` What you see is from ${clock(known.seen_ms)}.` : "";
  if (away) return `${away.charAt(0).toUpperCase()}${away.slice(1)}.${seen}`;
  const why = link.why || "the gateway doesn't answer";
  return `Not connected since ${clock(link.since)}: ${why}.${seen} This page tries again by itself.`;
}

// --- dark or light ----------------------------------------------------------------------------

const THEMES = ["auto", "dark", "light"];

function kept() {
  try {
    return localStorage.getItem("headgate-theme") ?? "auto";
  } catch {
    return "auto";
  }
}

function useTheme(name) {
  attribute(document.documentElement, "data-theme", name === "auto" ? null : name);
  attribute(document.getElementById("theme"), "title", `Colours: ${name}`);
}

document.getElementById("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(kept()) + 1) % THEMES.length];
  try {
    localStorage.setItem("headgate-theme", next);
  } catch {
    // A browser that keeps nothing shows it as long as the page is open.
  }
  useTheme(next);
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

useTheme(kept());
addEventListener("hashchange", () => {
  const before = shown?.page;
  show();
  if (shown.page !== before) main.querySelector("h1")?.focus({ preventScroll: false });
});
live.addEventListener("change", async () => {
  // Nobody is logged in any more, or somebody is by another tab.
  const wasLoggedOut = session.isLoggedOut();
  if (wasLoggedOut ? live.link.connected && live.overview : live.link.status === 401) {
    await session.learn();
    showAccount();
    if (session.isLoggedOut() !== wasLoggedOut) show();
  }
  showLink();
  if (!document.hidden) update();
});
document.addEventListener("visibilitychange", () => document.hidden || update());
await session.learn();
showAccount();
live.start();
show();
