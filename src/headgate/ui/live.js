// The overview in this tab, as it changes. One line per browser: a worker that all tabs share has
// it. Where there are no such workers, the tab has a line of its own while it is looked at.

import { Connection } from "./connection.js";
import { History } from "./history.js";

const WORKER = new URL("./worker.js", import.meta.url).href;

/** Where a page may make no text into code, it has to say that this address is one of its own. */
function workerUrl() {
  const policy = globalThis.trustedTypes?.createPolicy("headgate", { createScriptURL: () => WORKER });
  return policy ? policy.createScriptURL("") : WORKER;
}

class Live extends EventTarget {
  overview = null;
  history = new History();
  link = { connected: false, since: Date.now(), why: "" };
  #say = () => {};

  start() {
    const listen = (message) => this.#take(message);
    if ("SharedWorker" in globalThis) this.#share(listen);
    else this.#own(listen);
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => document.hidden || this.hurry());
  }

  /** Try to connect at once. */
  hurry() {
    this.#say("hurry");
  }

  /** Begin anew, as the principal that is logged in now. */
  again() {
    this.#say("again");
  }

  #share(listen) {
    const url = workerUrl();
    const open = () => {
      const { port } = new SharedWorker(url, { type: "module", name: "headgate" });
      port.addEventListener("message", ({ data }) => listen(data));
      port.start();
      this.#say = (word) => port.postMessage(word);
      addEventListener("pagehide", () => port.postMessage("leave"), { once: true });
    };
    open();
    // A page that comes back out of the browser's memory has left.
    addEventListener("pageshow", (event) => event.persisted && open());
  }

  #own(listen) {
    const connection = new Connection(listen);
    this.#say = (word) => connection[word]();
  }

  #take({ fields, link, samples, cleared }) {
    if (cleared) [this.overview, this.history] = [null, new History()];
    if (samples) this.history = new History(samples);
    if (link) this.link = link;
    if (fields) {
      this.overview = { ...this.overview, ...fields };
      if (fields.seen_ms && this.overview.totals) this.history.add(this.overview);
    }
    this.dispatchEvent(new Event("change"));
  }
}

export const live = new Live();
