// The last minutes of what is shown as curves, and what follows from two moments: rates and
// latencies. Bounded; pure but for its own list.

const KEPT = 180;
const LATENCY_MS = 30_000;
const RATE_MS = 4_000;

/** One moment of an overview. */
function sampled(overview) {
  const { totals, routing } = overview;
  return {
    at: overview.seen_ms,
    appended: totals.appended,
    settled: totals.settled,
    waiting: totals.waiting,
    sent: overview.gateways.reduce((sum, one) => sum + one.sent, 0),
    rate: overview.topics.reduce((sum, one) => sum + one.rate, 0),
    routing: routing.counts,
  };
}

export class History {
  constructor(samples = []) {
    this.samples = samples;
  }

  add(overview) {
    const last = this.samples.at(-1);
    if (last?.at === overview.seen_ms) return;
    this.samples.push(sampled(overview));
    if (this.samples.length > KEPT) this.samples.shift();
  }

  /** Growth of a sum per second at each moment, over a few seconds; null where it isn't known. */
  rates(name) {
    return this.samples.map((now, index) => {
      const before = this.#before(index, RATE_MS);
      // What falls has begun anew.
      if (!before || now[name] < before[name]) return null;
      return ((now[name] - before[name]) * 1_000) / (now.at - before.at);
    });
  }

  values(name) {
    return this.samples.map((one) => one[name]);
  }

  /** The latency below which `share` of the last half minute's records stayed, in ms. */
  latency(share, boundsS, index = this.samples.length - 1) {
    const now = this.samples[index];
    const before = this.#before(index, LATENCY_MS);
    return before ? quantile(newSince(before.routing, now.routing), share, boundsS) : null;
  }

  #before(index, ms) {
    const now = this.samples[index];
    if (!now) return null;
    let at = index;
    while (at > 0 && now.at - this.samples[at].at < ms) at -= 1;
    return at === index ? null : this.samples[at];
  }
}

function newSince(before, now) {
  if (before.length !== now.length) return now;
  const counts = now.map((value, index) => value - before[index]);
  return counts.some((one) => one < 0) ? now : counts;
}

/** Within a bucket it is taken to grow evenly; above the last bound it is that bound. */
export function quantile(counts, share, boundsS) {
  const all = counts.reduce((sum, one) => sum + one, 0);
  if (!all) return null;
  let below = 0;
  for (const [index, inside] of counts.entries()) {
    if (inside && below + inside >= all * share) {
      const lower = index ? boundsS[index - 1] : 0;
      const upper = boundsS[index] ?? boundsS.at(-1);
      return 1_000 * (lower + (upper - lower) * ((all * share - below) / inside));
    }
    below += inside;
  }
  return 1_000 * boundsS.at(-1);
}
