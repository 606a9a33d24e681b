/**
 * Headgate in a browser: subscribe to topics, and hear of every change that matches.
 *
 *     import { Headgate } from "http://127.0.0.1:8780/client.js";
 *
 *     const headgate = new Headgate();
 *     headgate.subscribe("flights", { where: "altitude < 3000", onEvent: (event) => … });
 *
 * All subscriptions of one Headgate share a WebSocket; where that is blocked each has a stream of
 * server-sent events. A connection that is lost is made again, with growing pauses, for ever, and
 * each subscription goes on behind what it was handed last: per subscription and partition, events
 * come in order, none twice, and none left out without a resync in its place.
 *
 * Nothing waits in here: a message is handed out in the task in which it arrives, so what is kept
 * is a position per partition, however long a page stays open. What a handler throws is reported as
 * any other error of the page, and the next message comes all the same.
 */

const OPEN_MS = 5_000; // for a gateway to answer at all
const QUIET_MS = 20_000; // after which it is asked whether it is there
const ANSWER_MS = 10_000; // for that
const STREAM_QUIET_MS = 45_000; // a stream says something every 15 s
const PAUSE_FIRST_MS = 100;
const PAUSE_MOST_MS = 5_000;
const ACK_MS = 1_000;
const BLOCKED_AFTER = 2; // WebSockets that failed where HTTP did not
const BLOCKED_MS = 60_000; // before another one is tried
const STREAMS_MOST = 5; // a browser has six connections to a host
const STEPS_MOST = 16; // redirects and dead gateways of one opening
const UNKNOWN_MOST = 3; // tokens in a row that nobody knows
const RENEWED_AT = 0.8; // of the time that a token has left
const RENEWED_FIRST_MS = 1_000;
const RENEWED_LATE_MS = 60_000; // where by our clock it had ended before the gateway took it
const TIMER_MOST_MS = 2 ** 31 - 1;
const MOVED_ON_MS = 30_000; // for a log that has lost its history to go on behind its positions
const MAY_PASS = new Set([
  "timeout", "overloaded", "too_many", "unavailable", "storage_failed", "internal",
]);
const LOOPBACK = new Set(["localhost", "127.0.0.1", "[::1]"]);

/** What a gateway refuses, or what keeps us from it: `code` is for programs, `message` for people. */
export class HeadgateError extends Error {
  constructor(code, message, details = {}) {
    super(message);
    this.name = "HeadgateError";
    this.code = code;
    this.details = details;
  }
}

/** One question, and how far its answers have come. Headgate.subscribe makes it. */
export class Subscription {
  #close;

  constructor(id, topic, options, close) {
    this.id = id;
    this.topic = topic;
    /** "opening", "live" or "ended" */
    this.state = "opening";
    /** Per partition the seq of what was handed out last. */
    this.positions = new Map();
    this._options = options;
    this._hasBegun = false;
    this._refusals = 0;
    this._beyondSince = 0;
    this._retry = undefined;
    this._unsaid = new Set();
    this.#close = close;
  }

  /** What to give as `from` to go on here later, also after the page was loaded again. */
  get next() {
    if (!this._hasBegun) return this._options.from ?? "now";
    return Object.fromEntries([...this.positions].map(([partition, seq]) => [partition, seq + 1]));
  }

  /** No handler is called from now on. */
  close() {
    this.#close(this);
  }

  /** What is asked on a connection that knows nothing of us. */
  _question() {
    clearTimeout(this._retry);
    this._unsaid.clear();
    const { where, filter, priority, tenant } = this._options;
    return { topic: this.topic, where, filter, priority, tenant, from: this.next };
  }

  _take(message) {
    if (this.state === "ended") return;
    switch (message.type) {
      case "subscribed":
        return this.#begun(message);
      case "event":
        return this.#passed(message, this._options.onEvent);
      case "left":
        return this.#passed(message, this._options.onLeft);
      case "resync":
        return this.#missed(message);
    }
  }

  #begun({ positions }) {
    const resumed = this._hasBegun;
    for (const [partition, seq] of Object.entries(positions)) {
      if (!this.positions.has(Number(partition))) this.positions.set(Number(partition), seq);
    }
    this.state = "live";
    this._hasBegun = true;
    this._refusals = this._beyondSince = 0;
    call(this._options.onSubscribed, { positions: new Map(this.positions), resumed });
  }

  #passed(message, handler) {
    if (message.redelivery) return call(handler, message);
    if (message.seq <= (this.positions.get(message.partition) ?? 0)) return;
    call(handler, message);
    this.#isAt(message.partition, message.seq);
  }

  #missed(message) {
    if (message.from - 1 <= (this.positions.get(message.partition) ?? -1)) return;
    call(this._options.onResync ?? warnOfResync, message);
    this.#isAt(message.partition, message.from - 1);
  }

  #isAt(partition, seq) {
    this.positions.set(partition, seq);
    this._unsaid.add(partition);
  }

  _acknowledgement() {
    const said = [...this._unsaid].map((partition) => [partition, this.positions.get(partition)]);
    this._unsaid.clear();
    return said.length ? Object.fromEntries(said) : undefined;
  }

  _end(error) {
    clearTimeout(this._retry);
    if (this.state === "ended") return;
    this.state = "ended";
    if (error) call(this._options.onError ?? console.error, error);
  }
}

export class Headgate {
  #url;
  #options;
  #id = crypto.getRandomValues(new Uint32Array(3)).join("-");
  #subscriptions = new Map();
  #numbers = 0;
  #line = null; // the connection that is open: begin, end and acknowledge
  #newLine = null; // one that doesn't know yet who we are
  #renewal = undefined;
  #unknown = 0; // how often in a row nobody knew our token
  #isRunning = false;
  #over = new AbortController();
  #attempt = 0;
  #wake = () => {};
  #acknowledging = undefined;
  #failures = 0;
  #blockedUntil = 0;
  #state = "idle";
  #reason = "";

  /** `url` is any gateway's public address, by default the one that this module came from. */
  constructor(url = new URL(import.meta.url).origin, options = {}) {
    this.#url = new URL(url);
    this.#options = options;
    globalThis.addEventListener?.("online", () => this.#wake(), { signal: this.#over.signal });
  }

  /** "idle", "connecting", "live" (all subscriptions have begun), "waiting" or "closed" */
  get state() {
    return this.#state;
  }

  /** Why it waits, in one sentence. */
  get reason() {
    return this.#reason;
  }

  subscribe(topic, options = {}) {
    if (this.#over.signal.aborted) throw new HeadgateError("invalid", "this Headgate was closed");
    this.#numbers += 1;
    const id = `s${this.#numbers}`;
    const subscription = new Subscription(id, topic, options, () => this.#leave(subscription));
    this.#subscriptions.set(id, subscription);
    if (this.#line) {
      this.#turn("connecting");
      this.#line.begin(subscription);
    }
    this.#keepConnected();
    return subscription;
  }

  /** Ends all subscriptions and the connection, for good. */
  close() {
    if (this.#over.signal.aborted) return;
    this.#fail();
    clearTimeout(this.#acknowledging);
    this.#over.abort();
    this.#wake();
    this.#turn("closed");
  }

  // --- the connection ----------------------------------------------------------------------------

  async #keepConnected() {
    if (this.#isRunning) return;
    this.#isRunning = true;
    while (this.#subscriptions.size && !this.#over.signal.aborted) {
      this.#turn("connecting");
      try {
        await (this.#usesStreams() ? this.#overStreams() : this.#overWebSocket());
      } catch (error) {
        if (this.#over.signal.aborted) break;
        if (this.#mayBeLoggedIn(error)) this.#blockedUntil = Infinity;
        else if (this.#mayPass(error)) await this.#pause(error);
        else this.#fail(error);
      }
    }
    this.#isRunning = false;
    this.#turn(this.#over.signal.aborted ? "closed" : "idle");
  }

  /** The cookie of a log-in goes along with requests to its own address, and with no WebSocket. */
  #mayBeLoggedIn(error) {
    const isOwn = this.#url.origin === globalThis.location?.origin && !this.#options.token;
    const isAuto = (this.#options.transport ?? "auto") === "auto" && !this.#usesStreams();
    return error.code === "unauthorized" && isOwn && isAuto;
  }

  /** A token that isn't good any more may be followed by one that is. */
  #mayPass(error) {
    if (!(error instanceof HeadgateError) || MAY_PASS.has(error.code)) return true;
    if (error.code !== "unauthorized" || typeof this.#options.token !== "function") return false;
    this.#unknown += 1;
    return this.#unknown < UNKNOWN_MOST;
  }

  #turn(state, reason = "") {
    if (this.#state === state && this.#reason === reason) return;
    if (this.#state === "closed") return;
    [this.#state, this.#reason] = [state, reason];
    call(this.#options.onState, state, reason);
  }

  /** Some of it by chance, so that a thousand pages don't come back at once. */
  async #pause(error) {
    const longest = Math.min(PAUSE_MOST_MS, PAUSE_FIRST_MS * 2 ** Math.min(this.#attempt, 16));
    this.#attempt += 1;
    for (const subscription of this.#subscriptions.values()) subscription.state = "opening";
    this.#turn("waiting", error.message);
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, longest * (0.5 + Math.random() / 2));
      this.#wake = () => (clearTimeout(timer), resolve());
    });
  }

  /** Ends everything that was asked for; with what trying again can't mend, each is told. */
  #fail(error) {
    const ended = [...this.#subscriptions.values()];
    this.#subscriptions.clear();
    for (const subscription of ended) subscription._end(error);
  }

  #usesStreams() {
    const wanted = this.#options.transport ?? "auto";
    return wanted === "sse" || (wanted === "auto" && performance.now() < this.#blockedUntil);
  }

  async #token() {
    const { token } = this.#options;
    return typeof token === "function" ? await token() : token;
  }

  #fetch(path, signal, token) {
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    return fetch(new URL(path, this.#url), { headers, signal, cache: "no-store" });
  }

  // --- over a WebSocket --------------------------------------------------------------------------

  async #overWebSocket() {
    let door = await this.#address();
    let sentBy = "";
    let sentTo = "";
    const visited = new Set();
    const unreachable = [];
    for (let step = 0; step < STEPS_MOST; step += 1) {
      const query = new URLSearchParams({ v: "1", id: this.#id });
      if (unreachable.length) query.set("unreachable", unreachable.join(","));
      const { redirect, refused } = await this.#converse(`${door}?${query}`);
      if (redirect && visited.has(redirect.gateway)) {
        unreachable.push(redirect.gateway); // two gateways of two minds: this one makes do
      } else if (redirect) {
        visited.add(redirect.gateway);
        [sentBy, sentTo, door] = [door, redirect.gateway, redirect.url];
      } else if (refused && sentTo) {
        unreachable.push(sentTo);
        [door, sentTo] = [sentBy, ""];
      } else if (refused) {
        return this.#blocked();
      } else {
        return; // nothing is subscribed to any more
      }
    }
    throw new Error(`after ${STEPS_MOST} tries no gateway had taken this page; it tries again`);
  }

  /** HTTP came through and WebSockets don't: whatever stands in between won't change its mind. */
  #blocked() {
    this.#failures += 1;
    if (this.#failures >= BLOCKED_AFTER) this.#blockedUntil = performance.now() + BLOCKED_MS;
    throw new Error("a WebSocket to the gateway could not be opened");
  }

  /** The gateway says it itself: where nothing answers, no WebSocket would be taken either. */
  async #address() {
    let answer;
    try {
      answer = await this.#fetch("/v1/gateway", AbortSignal.timeout(OPEN_MS));
    } catch {
      throw new Error(
        `nobody answers at ${this.#url.origin}, or this page's origin isn't in its public.origins`,
      );
    }
    if (!answer.ok) throw await errorIn(answer);
    const url = new URL((await answer.json()).ws_url);
    if (this.#url.protocol === "https:") url.protocol = "wss:";
    // A page of localhost is another origin than one of 127.0.0.1.
    if (LOOPBACK.has(url.hostname) && LOOPBACK.has(this.#url.hostname)) {
      url.hostname = this.#url.hostname;
    }
    return url.href;
  }

  /** What a gateway has to say at `url`: that it refuses or redirects is an answer, that the
      connection is lost an error. */
  #converse(url) {
    return conversation(url, {
      signal: this.#over.signal,
      opened: async (say, leave) => {
        this.#failures = 0;
        const line = {
          begin: (one) => say({ type: "subscribe", id: one.id, ...one._question() }),
          end: (one) => say({ type: "unsubscribe", subscription: one.id }),
          acknowledge: (one, positions) => say({ type: "ack", subscription: one.id, positions }),
          authenticate: (token) => say({ type: "auth", token }),
          begun: () => this.#begin(line),
          leave,
        };
        const token = await this.#token();
        if (!token) return line.begun();
        this.#newLine = line;
        line.authenticate(token);
      },
      heard: (message) => this.#heard(message),
    }).finally(() => {
      clearTimeout(this.#renewal);
      this.#line = this.#newLine = null;
    });
  }

  #begin(line) {
    this.#line = line;
    for (const one of this.#subscriptions.values()) line.begin(one);
    if (!this.#subscriptions.size) line.leave();
  }

  /** We are known: the first time it begins, and each time a new token is due before the end. */
  #authenticated({ expires_at_ms: ends }) {
    const line = this.#newLine ?? this.#line;
    this.#newLine = null;
    if (line !== this.#line) line.begun();
    clearTimeout(this.#renewal);
    if (ends === null || typeof this.#options.token !== "function") return;
    const left = ends - Date.now();
    const due =
      left > 0
        ? Math.min(Math.max(left * RENEWED_AT, RENEWED_FIRST_MS), TIMER_MOST_MS)
        : RENEWED_LATE_MS;
    this.#renewal = setTimeout(() => {
      this.#token().then(
        (token) => token && this.#line?.authenticate(token),
        () => {}, // the connection ends with the old one, and the next asks again
      );
    }, due);
  }

  #heard(message) {
    switch (message.type) {
      case "event":
      case "left":
        for (const name of message.subscriptions) this.#subscriptions.get(name)?._take(message);
        return this.#acknowledgeSoon();
      case "resync":
        this.#subscriptions.get(message.subscription)?._take(message);
        return this.#acknowledgeSoon();
      case "subscribed":
        this.#subscriptions.get(message.subscription)?._take(message);
        return this.#mayBeLive();
      case "error": {
        const about = this.#subscriptions.get(message.subscription);
        return about && this.#refused(about, errorOf(message.error));
      }
      case "authenticated":
        return this.#authenticated(message);
      case "unsubscribed":
      case "pong":
        return;
      default:
        throw new HeadgateError(
          "invalid",
          "the gateway says what this version of client.js doesn't know; load the page again",
        );
    }
  }

  #mayBeLive() {
    if ([...this.#subscriptions.values()].some((one) => one.state !== "live")) return;
    this.#attempt = this.#unknown = 0;
    this.#turn("live");
  }

  /** One subscription didn't begin, or has ended; the others go on. */
  #refused(one, error) {
    const movesOn = one._hasBegun && "head" in error.details;
    if (movesOn) one._beyondSince ||= performance.now();
    if (MAY_PASS.has(error.code) || (movesOn && performance.now() - one._beyondSince < MOVED_ON_MS)) {
      one.state = "opening";
      const pause = Math.min(PAUSE_MOST_MS, PAUSE_FIRST_MS * 2 ** Math.min(one._refusals++, 16));
      this.#turn("connecting", error.message);
      clearTimeout(one._retry);
      one._retry = setTimeout(() => one.state === "opening" && this.#line?.begin(one), pause);
      return;
    }
    this.#subscriptions.delete(one.id);
    one._end(error);
    this.#mayBeOver();
  }

  #leave(one) {
    if (!this.#subscriptions.delete(one.id)) return;
    one._end();
    this.#line?.end(one);
    this.#mayBeOver();
  }

  /** A page that subscribes again at once finds the connection open. */
  #mayBeOver() {
    queueMicrotask(() => {
      if (this.#subscriptions.size) this.#mayBeLive();
      else if (this.#line) this.#line.leave();
      else this.#wake();
    });
  }

  #acknowledgeSoon() {
    this.#acknowledging ??= setTimeout(() => {
      this.#acknowledging = undefined;
      for (const one of this.#subscriptions.values()) {
        const positions = one.state === "live" && this.#line ? one._acknowledgement() : undefined;
        if (positions) this.#line.acknowledge(one, positions);
      }
    }, ACK_MS);
  }

  // --- over server-sent events -------------------------------------------------------------------

  /** A stream for each subscription; when one is lost, all begin anew. */
  #overStreams() {
    return new Promise((resolve, reject) => {
      const streams = new Map();
      const leave = () => finish(resolve);
      const finish = (settle, value) => {
        this.#line = null;
        this.#over.signal.removeEventListener("abort", leave);
        for (const stream of streams.values()) stream.abort();
        settle(value);
      };
      const begin = (one) => {
        if (streams.size >= STREAMS_MOST && !streams.has(one)) return this.#refused(one, tooMany());
        streams.get(one)?.abort();
        const stream = new AbortController();
        streams.set(one, stream);
        const signal = AbortSignal.any([stream.signal, this.#over.signal]);
        this.#follow(one, signal).then(
          () => one.state === "ended" && end(one), // what is refused takes no place from others
          (error) => signal.aborted || finish(reject, error),
        );
      };
      const end = (one) => {
        streams.get(one)?.abort();
        streams.delete(one);
      };
      this.#line = { begin, end, acknowledge() {}, leave };
      this.#over.signal.addEventListener("abort", leave);
      for (const one of [...this.#subscriptions.values()]) begin(one);
      if (!this.#subscriptions.size) leave();
    });
  }

  async #follow(one, signal) {
    const quiet = new AbortController();
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => quiet.abort(new Error("the stream is silent")), STREAM_QUIET_MS);
    };
    try {
      const token = await this.#token();
      heard(); // other tabs may have all connections that a browser allows
      const answer = await this.#fetch(
        `/v1/subscribe?${queryOf(one._question())}`,
        AbortSignal.any([signal, quiet.signal]),
        token,
      );
      if (answer.status === 401) throw await errorIn(answer);
      if (!answer.ok) return this.#refused(one, await errorIn(answer));
      for await (const message of messagesOf(answer.body, heard)) {
        if (signal.aborted) return;
        if (message.type === "error" && message.error.code === "unauthorized") {
          throw errorOf(message.error);
        }
        if (message.type === "error") return this.#refused(one, errorOf(message.error));
        one._take(message);
        if (message.type === "subscribed") this.#mayBeLive();
      }
    } finally {
      clearTimeout(timer);
    }
    throw new Error("the stream from the gateway ended");
  }
}

// --- what they are made of -------------------------------------------------------------------------

/** A WebSocket from its opening to its end, as a promise. */
function conversation(url, { signal, opened, heard }) {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(url);
    let isOpen = false;
    let timer;
    const finish = (settle, value) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", leave);
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
      settle(value);
    };
    const leave = () => finish(resolve, {});
    const say = (message) =>
      socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
    const expect = (within, otherwise) => {
      clearTimeout(timer);
      timer = setTimeout(otherwise, within);
    };
    /** A gateway that is quiet for long is asked, and then given up. */
    const listen = () =>
      expect(QUIET_MS, () => {
        say({ type: "ping" });
        expect(ANSWER_MS, () => finish(reject, new Error("the gateway doesn't answer any more")));
      });
    signal.addEventListener("abort", leave);
    expect(OPEN_MS, () => finish(resolve, { refused: true }));
    socket.onopen = () => {
      isOpen = true;
      listen();
      opened(say, leave).catch((error) => finish(reject, error));
    };
    socket.onclose = () =>
      isOpen
        ? finish(reject, new Error("the connection to the gateway was lost"))
        : finish(resolve, { refused: true });
    socket.onmessage = ({ data }) => {
      listen();
      try {
        const message = JSON.parse(data);
        if (message.type === "redirect") return finish(resolve, { redirect: message });
        if (message.type === "error" && !message.subscription) throw errorOf(message.error);
        heard(message);
      } catch (error) {
        finish(reject, error);
      }
    };
  });
}

/** The messages of a stream of server-sent events; `heard` is told whenever something comes. */
async function* messagesOf(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      heard();
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").find((line) => line.startsWith("data: "));
        if (data) yield JSON.parse(data.slice("data: ".length));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A question as parameters of an address. */
function queryOf({ filter, from, ...texts }) {
  const query = new URLSearchParams();
  for (const [name, text] of Object.entries(texts)) if (text !== undefined) query.set(name, text);
  if (filter !== undefined) query.set("filter", JSON.stringify(filter));
  const places = typeof from === "string" ? from : Object.entries(from).map((one) => one.join(":"));
  query.set("from", String(places));
  return query;
}

function errorOf({ code, message, details }) {
  return new HeadgateError(code, message, details);
}

async function errorIn(answer) {
  try {
    return errorOf((await answer.json()).error);
  } catch {
    return new HeadgateError(
      answer.status >= 500 ? "unavailable" : "invalid",
      `something that isn't Headgate answers at ${new URL(answer.url).origin} (${answer.status})`,
    );
  }
}

function tooMany() {
  return new HeadgateError(
    "too_large",
    `WebSockets are blocked here, and without them a page has at most ${STREAMS_MOST} subscriptions: ` +
      "close one first",
    { limit: STREAMS_MOST },
  );
}

function warnOfResync({ topic, partition, after, from, reason }) {
  console.warn(
    `headgate: records ${after + 1} to ${from - 1} of ${topic}:${partition} won't come (${reason})`,
  );
}

/** The page's own mistakes are the page's: they stop nothing here. */
function call(handler, ...given) {
  try {
    const outcome = handler?.(...given);
    outcome?.catch?.(reportError);
  } catch (error) {
    reportError(error);
  }
}
