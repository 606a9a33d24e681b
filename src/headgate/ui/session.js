// Who is logged in, and what they may do. The token itself is in a cookie that no script reads.

import { get, post, remove } from "./api.js";
import { h, replace } from "./dom.js";
import { failed } from "./parts/dialogs.js";
import { field } from "./parts/pieces.js";

const TIMEOUT_MS = 3_000;
const WRONG = "Nobody has that token, or it isn't valid any more: paste the whole of one that is.";

let session = { required: false, name: "", may: null };

/** Ask the gateway; where it doesn't answer, all stays as it was, and it refuses what it must. */
export async function learn() {
  try {
    session = await get("/v1/session", {}, { timeoutMs: TIMEOUT_MS });
  } catch {
    // The page says that it isn't connected.
  }
  return session;
}

/** Whether the page's user may do that, such as "write:nodes", at least with some topics. */
export function may(what) {
  return session.may === null || session.may.includes(what);
}

export function isLoggedOut() {
  return session.required && !session.name;
}

export function who() {
  return session.required ? session.name : "";
}

export async function logOut() {
  session = await remove("/v1/session");
}

/** A page that asks for a token; `done` is called once there is a session. */
export function logInPage(done) {
  const token = h("input", { type: "password", name: "token", autocomplete: "off", required: true });
  const said = h("p", { role: "alert" });
  const submit = h("button", { class: "primary", type: "submit" }, "Log in");
  const begin = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      session = await post("/v1/session", { token: token.value.trim() });
      token.value = "";
      done();
    } catch (error) {
      const isUnknown = error.code === "unauthorized" && !error.details.reason;
      replace(said, isUnknown ? h("span", { class: "failed" }, WRONG) : failed(error));
      token.focus();
    }
    submit.disabled = false;
  };
  return {
    title: "Log in",
    element: h(
      "form",
      { class: "card log-in", on: { submit: begin } },
      field("Token", token, "An administrator makes one with headgate token create."),
      said,
      submit,
    ),
  };
}
