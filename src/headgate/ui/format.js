// Numbers, times and sizes as people read them. Pure.

const SPACE = "\u202f";

/** 1,234,567 */
export function count(value) {
  return Math.round(value).toLocaleString("en");
}

/** 1.2 M: never more than five characters wide, so that nothing jumps. */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9)}${SPACE}G`;
  if (size >= 1e6) return `${digits(value / 1e6)}${SPACE}M`;
  if (size >= 1e4) return `${digits(value / 1e3)}${SPACE}k`;
  if (size >= 100 || Number.isInteger(value)) return count(value);
  return digits(value);
}

function digits(value) {
  return value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 1);
}

/** 340 ms, 2.5 s, 3 min, 4 h, 5 d */
export function duration(ms) {
  if (ms < 1) return ms <= 0 ? `0${SPACE}ms` : `${ms.toFixed(1)}${SPACE}ms`;
  if (ms < 1_000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)}${SPACE}ms`;
  const s = ms / 1_000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)}${SPACE}s`;
  if (s < 7_200) return `${Math.round(s / 60)}${SPACE}min`;
  if (s < 172_800) return `${Math.round(s / 3_600)}${SPACE}h`;
  return `${Math.round(s / 86_400)}${SPACE}d`;
}

/** 512 B, 1.5 kB, 1.0 MB */
export function size(bytes) {
  if (bytes < 1_000) return `${bytes}${SPACE}B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)}${SPACE}kB`;
  return `${(bytes / 1e6).toFixed(1)}${SPACE}MB`;
}

/** 14:03:21 today, with its date on other days. */
export function clock(ms, now = Date.now()) {
  const then = new Date(ms);
  const time = then.toLocaleTimeString("en-GB");
  return then.toDateString() === new Date(now).toDateString() ? time : `${day(then)} ${time}`;
}

/** ["14:03:21"] today, else a date and, in the same year, a time of day: for where little fits. */
export function brief(ms, now = Date.now()) {
  const then = new Date(ms);
  const today = new Date(now);
  const time = then.toLocaleTimeString("en-GB");
  if (then.toDateString() === today.toDateString()) return [time];
  if (then.getFullYear() !== today.getFullYear()) return [day(then)];
  return [day(then).slice(5), time.slice(0, 5)];
}

/** 2026-01-31 14:03:21.123 with the zone's offset */
export function instant(ms) {
  const then = new Date(ms);
  const offset = -then.getTimezoneOffset();
  const zone = offset
    ? `${offset < 0 ? "−" : "+"}${two(Math.abs(offset) / 60)}:${two(Math.abs(offset) % 60)}`
    : "UTC";
  const milliseconds = String(then.getMilliseconds()).padStart(3, "0");
  return `${day(then)} ${then.toLocaleTimeString("en-GB")}.${milliseconds} ${zone}`;
}

function day(then) {
  return `${then.getFullYear()}-${two(then.getMonth() + 1)}-${two(then.getDate())}`;
}

function two(value) {
  return String(Math.floor(value)).padStart(2, "0");
}

/** "1 record", "2 records" */
export function plural(value, noun, many = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : many}`;
}

/** 12.5 % */
export function percent(share) {
  const value = share * 100;
  return `${value < 10 && value > 0 ? value.toFixed(1) : Math.round(value)}${SPACE}%`;
}

// What would change how other text reads, or isn't seen at all: controls, and characters that turn
// the direction of what follows.
const UNSEEN =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Text that others wrote, in which nothing hides. */
export function visible(words) {
  return words.replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** The first `most` characters, and that there are more. */
export function cut(words, most) {
  return words.length > most ? `${words.slice(0, most)}…` : words;
}
