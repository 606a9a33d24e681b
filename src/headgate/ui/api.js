// Calls of the HTTP API. Whatever goes wrong is a Failure whose message is a sentence for people.

import { parse } from "./exact_json.js";

const TIMEOUT_MS = 20_000;

export class Failure extends Error {
  constructor(message, { status = 0, code = "", details = {} } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details;
  }
}

/** A path with its names encoded: path`/v1/topics/${name}` */
export function path(parts, ...names) {
  return parts.reduce((so_far, part, index) => so_far + encodeURIComponent(names[index - 1]) + part);
}

export function get(where, query = {}, options = {}) {
  return call("GET", where, { query, ...options });
}

export function post(where, body, options = {}) {
  return call("POST", where, { body, ...options });
}

export function remove(where, options = {}) {
  return call("DELETE", where, options);
}

async function call(method, where, { query = {}, body, signal, timeoutMs = TIMEOUT_MS } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const url = given.length ? `${where}?${new URLSearchParams(given)}` : where;
  const timeout = AbortSignal.timeout(timeoutMs);
  let answer;
  let text;
  try {
    answer = await fetch(url, {
      method,
      headers: headersOf(method, body),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
      cache: "no-store",
    });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    const done = method === "GET" ? "" : ", so this may or may not have been done";
    throw new Failure(`The gateway doesn't answer${done}; try again.`, { code: "unreachable" });
  }
  const value = text ? parsed(text) : null;
  if (answer.ok) return value;
  const { message, code, details } = value?.error ?? {};
  throw new Failure(asSentence(message ?? `The gateway answered ${answer.status}.`), {
    status: answer.status,
    code,
    details,
  });
}

/* Only a page of this very address can add this one: a log-in counts with it alone. */
function headersOf(method, body) {
  const headers = method === "GET" ? {} : { "x-headgate-page": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  return headers;
}

function parsed(text) {
  try {
    return parse(text);
  } catch {
    throw new Failure("The gateway answered something that isn't JSON; is this its address?");
  }
}

function asSentence(words) {
  const sentence = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
}
