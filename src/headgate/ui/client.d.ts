/** Types of /client.js; docs/browser.md says what they mean. */

export type Positions = Record<string, number>;

/** Where to begin: "now" (default), "earliest", a time such as "2026-01-31T12:00:00Z", or per
    partition the first seq wanted. */
export type From = "now" | "earliest" | (string & {}) | Positions;

/** A record that matches, or (`left`) one that did before this change and doesn't any more.
    Integers beyond 2^53 in the document have lost their last digits, as everywhere in JavaScript. */
export interface HeadgateEvent<Document = unknown> {
  type: "event" | "left";
  topic: string;
  partition: number;
  seq: number;
  event_id: string;
  key: string | null;
  collection: string;
  op: "insert" | "update" | "delete" | "read" | "truncate" | "drop" | "rename" | (string & {});
  document: Document;
  /** An operator had it sent again, outside the order. */
  redelivery?: boolean;
  headers?: Record<string, string>;
}

/** Records that may match and won't come: whoever keeps a copy fetches it anew. */
export interface Resync {
  type: "resync";
  topic: string;
  partition: number;
  after: number;
  from: number;
  reason: "retention" | "gap" | "slow" | "corrupt" | "origin" | (string & {});
}

export interface Condition {
  field: string;
  op: "==" | "!=" | ">" | ">=" | "<" | "<=" | "in" | "contains" | "prefix" | "exists";
  value?: unknown;
}

export interface SubscribeOptions<Document = unknown> {
  /** A CEL expression over the fields of the document; without it, every record. */
  where?: string;
  /** Instead of `where`: conditions that must all hold. */
  filter?: Condition[];
  from?: From;
  /** What happens when the page is too slow. */
  priority?: "high" | "normal" | "low";
  tenant?: string;
  /** From now on nothing is missed; `resumed` says that it was so before. */
  onSubscribed?(begun: { positions: Map<number, number>; resumed: boolean }): void;
  onEvent?(event: HeadgateEvent<Document>): void;
  onLeft?(event: HeadgateEvent<Document>): void;
  /** Without a handler, the console says so. */
  onResync?(resync: Resync): void;
  /** It has ended, because trying again wouldn't help. Without a handler, the console says so. */
  onError?(error: HeadgateError): void;
}

export class HeadgateError extends Error {
  constructor(code: string, message: string, details?: Record<string, unknown>);
  /** Such as "invalid_filter" or "unknown_topic". */
  readonly code: string;
  /** Such as `position`, where a filter is wrong. */
  readonly details: Record<string, unknown>;
}

export class Subscription {
  private constructor();
  readonly id: string;
  readonly topic: string;
  readonly state: "opening" | "live" | "ended";
  /** Per partition the seq of what was handed out last. */
  readonly positions: ReadonlyMap<number, number>;
  /** What to give as `from` to go on here later, also after the page was loaded again. */
  readonly next: From;
  /** No handler is called from now on. */
  close(): void;
}

export type State = "idle" | "connecting" | "live" | "waiting" | "closed";

export interface HeadgateOptions {
  /** Asked for whenever a connection is made, and, a function, before a token ends. Only where the
      gateway asks who one is. */
  token?: string | (() => string | undefined | Promise<string | undefined>);
  /** "auto" (default): server-sent events where WebSockets are blocked. */
  transport?: "auto" | "websocket" | "sse";
  /** "live" is when all subscriptions have begun; when it is "waiting", `reason` says for what. */
  onState?(state: State, reason: string): void;
}

export class Headgate {
  /** `url` is any gateway's public address, by default the one that client.js came from. */
  constructor(url?: string | URL, options?: HeadgateOptions);
  readonly state: State;
  /** Why it waits, in one sentence. */
  readonly reason: string;
  subscribe<Document = unknown>(topic: string, options?: SubscribeOptions<Document>): Subscription;
  /** Ends all subscriptions and the connection, for good. */
  close(): void;
}
