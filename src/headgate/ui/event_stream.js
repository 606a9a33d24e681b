// Server-sent events over fetch, which EventSource can't replace here: it doesn't say why a server
// refuses, gives up after such an answer, and notices no line that has gone quiet.

/** Calls `heard(name, data)` for every event until the stream ends; throws where it never begins or
 * nothing comes for `silenceMs`. */
export async function readEvents(url, { heard, opened, silenceMs, signal }) {
  const aborter = new AbortController();
  const stop = () => aborter.abort();
  signal?.addEventListener("abort", stop, { once: true });
  let watchdog = setTimeout(stop, silenceMs);
  try {
    const answer = await fetch(url, {
      headers: { accept: "text/event-stream" },
      cache: "no-store",
      signal: aborter.signal,
    });
    if (!answer.ok) throw new Refused(answer.status, await sentenceOf(answer));
    opened?.();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(stop, silenceMs);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) tell(block, heard);
    }
  } finally {
    clearTimeout(watchdog);
    signal?.removeEventListener("abort", stop);
    stop();
  }
}

/** The server answered, with something else than a stream. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function sentenceOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the gateway answered ${answer.status}`;
  }
}

function tell(block, heard) {
  let name = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (data) heard(name, data);
}
