// The one line to the gateway: keeps the overview up to date, says when it can't, and tries again.
// Runs in a worker that all tabs share, or in a tab where there are no such workers.
// Told to the listeners, one after the other:
//   {fields}        what is new of the overview (all of it at first)
//   {link}          {connected, since, why, status}: whether there is a line; `why` is a sentence,
//                   `status` that of the gateway's answer, where it refused
//   {samples}       the history, to listeners that come later
//   {cleared}       what was told before counts no more

import { readEvents, Refused } from "./event_stream.js";
import { History } from "./history.js";

const SILENCE_MS = 15_000;
const PAUSE_MS = 500;
const PAUSE_MS_MAX = 5_000;
const STREAM = "/v1/overview/stream";

export class Connection {
  #tell;
  #fields = {};
  #history = new History();
  #link = { connected: false, since: Date.now(), why: "" };
  #pauseMs = PAUSE_MS;
  #wake = null;
  #aborter = new AbortController();

  /** `tell(message)` hands something to everybody who listens. */
  constructor(tell) {
    this.#tell = tell;
    this.#run();
  }

  /** What a new listener has to be told first. */
  soFar() {
    const known = Object.keys(this.#fields).length > 0;
    return [
      { samples: this.#history.samples },
      { link: this.#link },
      ...(known ? [{ fields: this.#fields }] : []),
    ];
  }

  /** Try at once: the user is looking, or the network is back. */
  hurry() {
    this.#pauseMs = PAUSE_MS;
    this.#wake?.();
  }

  /** Somebody else is logged in, or nobody: what was seen before isn't theirs. */
  again() {
    this.#fields = {};
    this.#history = new History();
    this.#tell({ cleared: true });
    this.#aborter.abort();
    this.hurry();
  }

  async #run() {
    for (;;) {
      this.#aborter = new AbortController();
      try {
        await readEvents(STREAM, {
          silenceMs: SILENCE_MS,
          signal: this.#aborter.signal,
          heard: (_name, data) => this.#heard(data),
        });
        this.#lost("the gateway ended the connection");
      } catch (error) {
        if (error instanceof Refused) this.#lost(error.message, error.status);
        else this.#lost("the gateway doesn't answer");
      }
      await this.#pause();
    }
  }

  #heard(data) {
    const fields = JSON.parse(data);
    if (!this.#link.connected) this.#say({ connected: true, since: Date.now(), why: "" });
    this.#pauseMs = PAUSE_MS;
    Object.assign(this.#fields, fields);
    if (fields.seen_ms) this.#history.add(this.#fields);
    this.#tell({ fields });
  }

  #lost(why, status = 0) {
    if (this.#link.connected || this.#link.why !== why) {
      const since = this.#link.connected ? Date.now() : this.#link.since;
      this.#say({ connected: false, since, why, status });
    }
  }

  #say(link) {
    this.#link = link;
    this.#tell({ link });
  }

  async #pause() {
    const pauseMs = this.#pauseMs * (0.75 + Math.random() / 2);
    this.#pauseMs = Math.min(PAUSE_MS_MAX, this.#pauseMs * 2);
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, pauseMs);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = null;
  }
}
