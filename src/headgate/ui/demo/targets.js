/** Which consumer of a group gets an aircraft: by the hash of its key, as Headgate does it. */

const OFFSET = 0xcbf29ce484222325n;
const PRIME = 0x100000001b3n;
const encoder = new TextEncoder();

/** FNV-1a, 64 bits, over `collection/key`. */
export function targetOf(key, targets, collection = "") {
  let hash = OFFSET;
  for (const byte of encoder.encode(`${collection}/${key}`)) {
    hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * PRIME);
  }
  return Number(hash % BigInt(targets));
}

/** Which consumer has which target; a hash is computed once per key. */
export class Owners {
  #targets = 0;
  #ownerOf = new Map();
  #targetOf = new Map();

  /** Whether that is anything new. */
  learn(targets, consumers) {
    const owned = consumers.flatMap((one, index) => one.targets.map((target) => [target, index]));
    const before = JSON.stringify([this.#targets, [...this.#ownerOf]]);
    if (targets !== this.#targets) this.#targetOf.clear();
    this.#targets = targets;
    this.#ownerOf = new Map(owned);
    return before !== JSON.stringify([this.#targets, [...this.#ownerOf]]);
  }

  /** The number of the consumer, or undefined while its target is on its way to one. */
  of(key) {
    if (!this.#targets) return undefined;
    if (!this.#targetOf.has(key)) this.#targetOf.set(key, targetOf(key, this.#targets));
    return this.#ownerOf.get(this.#targetOf.get(key));
  }
}
