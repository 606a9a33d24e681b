/** The demo itself, beside the system: its state twice a second, and what it is asked to do. */

const AGAIN_MS = 1_000;

/** Calls `onState` and `onAway`, with `this.take(name)` to begin what hurts. */
export async function demoAt(handlers) {
  const address = await whereItIs();
  const demo = {
    ...handlers,
    take: (name) =>
      fetch(`${address}/dares/${name}`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: "{}",
      }).catch(() => demo.onAway(true)),
  };
  const states = new EventSource(`${address}/state`);
  states.onmessage = ({ data }) => {
    demo.onAway(false);
    demo.onState(JSON.parse(data));
  };
  states.onerror = () => demo.onAway(true);
}

/** The gateway knows, when it is there. */
async function whereItIs() {
  for (;;) {
    try {
      const answer = await fetch("/ui/demo.json", { cache: "no-store" });
      if (answer.ok) return (await answer.json()).control;
    } catch {
      // asked again below
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}
