/**
 * The page's one subscription: what it matches is on the map. A new filter takes over when it has
 * begun, so that a wrong one changes nothing but what is said about it.
 */

const OLD_S = 20 * 60; // of the flight's time, which passes twenty times as fast
const RATE_MS = 3_000;

export class Following {
  #headgate;
  #map;
  #subscription = null;
  #next = null;
  #newest = 0;
  #samples = [];

  constructor(headgate, map) {
    this.#headgate = headgate;
    this.#map = map;
    this.#restart();
  }

  #restart() {
    this.matches = 0;
    this.left = 0;
    this.perSecond = 0;
    this.#samples = [];
  }

  /** `says` gets what is wrong with the filter, or undefined. */
  ask(where, says) {
    this.#next?.close();
    const asked = this.#headgate.subscribe("flights", {
      where: where || undefined,
      onSubscribed: ({ resumed }) => {
        says(undefined);
        if (!resumed) this.#takeOver(asked);
      },
      onEvent: ({ key, document: report }) => {
        if (asked !== this.#subscription) return;
        this.matches += 1;
        this.#newest = Math.max(this.#newest, report.time_s);
        this.#map.put(key, report);
      },
      onLeft: ({ key }) => {
        if (asked !== this.#subscription) return;
        this.left += 1;
        this.#map.remove(key);
      },
      onResync: () => this.#map.clear(),
      onError: says,
    });
    this.#next = asked;
  }

  #takeOver(asked) {
    this.#subscription?.close();
    [this.#subscription, this.#next] = [asked, null];
    this.#map.clear();
    this.#restart();
  }

  /** Now and then. */
  tick() {
    const now = performance.now();
    this.#samples.push([now, this.matches]);
    while (now - this.#samples[0][0] > RATE_MS) this.#samples.shift();
    const [since, before] = this.#samples[0];
    this.perSecond = now > since ? Math.round(((this.matches - before) / (now - since)) * 1000) : 0;
    this.#map.removeOld(({ time_s }) => this.#newest - time_s > OLD_S);
  }
}
