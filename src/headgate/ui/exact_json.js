// JSON whose numbers stay what was written: 12345678901234567890 isn't rounded by looking at it.

/** A number that JavaScript can't hold, as it was written. */
export class ExactNumber {
  constructor(source) {
    this.source = source;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.source) : Number(this.source);
  }
}

export function parse(text) {
  return JSON.parse(text, (_key, value, context) => {
    const source = context?.source;
    if (typeof value !== "number" || source === undefined || source.length < 16) return value;
    return String(value) === source ? value : new ExactNumber(source);
  });
}

/** One line of JSON, or several where `indent` says so. */
export function write(value, indent = 0) {
  return JSON.stringify(value, null, indent);
}
