// Asking before something is done, and saying what came of it.

import { Failure } from "../api.js";
import { freshId, h, replace } from "../dom.js";

/** Opens a dialog with these contents; resolves when it is closed. Escape closes it, and the focus
 * goes back to where it was; it goes with the page that it belongs to. */
export function showDialog({ title, content, wide = false }) {
  const id = freshId("dialog");
  const close = h(
    "button",
    { class: "quiet", type: "button", "aria-label": "Close", on: { click: () => dialog.close() } },
    "✕",
  );
  const dialog = h(
    "dialog",
    { class: wide ? "wide" : null, "aria-labelledby": id },
    h("header", null, h("h2", { id }, title), close),
    content,
  );
  document.body.append(dialog);
  dialog.showModal();
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  const leave = () => dialog.close();
  addEventListener("hashchange", leave);
  const closed = new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      removeEventListener("hashchange", leave);
      dialog.remove();
      resolve();
    });
  });
  return { dialog, closed };
}

/** Shows what an action means, looked up first by `preview()` (nodes), then does it with `act(say)`
 * once it is confirmed; `act` returns what came of it, in a sentence. `say` shows how far it is, and
 * `stopped()` of its argument whether the user wants it to end. */
export async function confirmed({ title, preview, action, danger = false, act, fields = null }) {
  const shown = h("div", { class: "preview", "aria-live": "polite" }, "Looking what that means…");
  const outcome = h("p", { class: "outcome", role: "status" });
  const doIt = h("button", { class: danger ? "danger" : "primary", type: "button" }, action);
  const cancel = h("button", { type: "button" }, "Cancel");
  const content = h(
    "div",
    { class: "dialog-body" },
    fields,
    shown,
    outcome,
    h("footer", null, cancel, doIt),
  );
  const { dialog, closed } = showDialog({ title, content });
  let isActing = false;
  let isStopped = false;
  let isDone = false;
  cancel.addEventListener("click", () => {
    // The user who stops it wants to see how far it came.
    if (isActing) isStopped = cancel.disabled = true;
    else dialog.close();
  });
  closed.then(() => (isStopped = true));
  let look = 0;
  const lookAgain = async () => {
    look += 1;
    const mine = look;
    doIt.disabled = true;
    try {
      const what = await preview();
      if (mine !== look) return;
      replace(shown, what.content ?? what);
      doIt.disabled = what.possible === false;
    } catch (error) {
      if (mine === look) replace(shown, failed(error));
    }
  };
  doIt.addEventListener("click", async () => {
    doIt.disabled = true;
    isActing = true;
    cancel.textContent = "Stop";
    fields?.querySelectorAll("input, select").forEach((one) => (one.disabled = true));
    try {
      const said = await act({ say: (words) => replace(outcome, words), stopped: () => isStopped });
      replace(outcome, said ?? "Done.");
      isDone = true;
    } catch (error) {
      replace(outcome, failed(error));
    }
    isActing = cancel.disabled = false;
    cancel.textContent = "Close";
    cancel.focus();
  });
  fields?.addEventListener("input", lookAgain);
  await lookAgain();
  await closed;
  return isDone;
}

/** An error as people should see it. */
export function failed(error) {
  const known = error instanceof Failure;
  if (!known) console.error(error);
  const words = known ? error.message : "Something went wrong in this page; reload it.";
  return h("span", { class: "failed" }, words);
}
