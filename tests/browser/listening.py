"""A page that listens through /client.js, and what it has heard."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page

from headgate.adapters.web_files import packaged_files
from headgate.decide.http.web_files import web_file

BLANK = web_file("blank.html", b"<!doctype html><title>blank</title>")
FILES = {**packaged_files(), "blank.html": BLANK}
"""With a page that does nothing by itself, under the policy of all pages."""
BLANK_PATH = "/ui/blank"
WAIT_MS = 10_000
LISTEN = """async ({ url, options, questions }) => {
  const { Headgate } = await import("/client.js");
  window.heard = [];
  window.tokens = 0;
  const note = (name) => (...given) => window.heard.push([name, ...given]);
  const { token } = options;
  if (token) options = { ...options, token: async () => `${token}-${++window.tokens}` };
  const headgate = (window.headgate = new Headgate(url || undefined, {
    ...options,
    onState: (state, reason) => window.heard.push(["state", state, reason]),
  }));
  window.subscriptions = {};
  window.listen = (name, { topic = "flights", ...asked }) => {
    window.subscriptions[name] = headgate.subscribe(topic, {
      ...asked,
      onSubscribed: ({ positions, resumed }) =>
        note(`${name}.subscribed`)(Object.fromEntries(positions), resumed),
      onEvent: note(`${name}.event`),
      onLeft: note(`${name}.left`),
      onResync: note(`${name}.resync`),
      onError: ({ code, message, details }) => note(`${name}.error`)({ code, message, details }),
    });
  };
  for (const [name, asked] of Object.entries(questions)) window.listen(name, asked);
}"""


class Listener:
    """`questions` are the options of each subscription, by a name of the test's own."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def listen(
        self, questions: dict[str, dict[str, Any]], *, url: str = "", **options: Any
    ) -> None:
        asked = {"url": url, "options": options, "questions": questions}
        await self.page.evaluate(LISTEN, asked)

    async def heard(self, kind: str) -> list[Any]:
        """What came of a kind, such as `all.event`, each without its kind."""
        found: list[Any] = await self.page.evaluate(
            "(kind) => heard.filter(([one]) => one === kind).map(([, ...rest]) => rest)", kind
        )
        return [one[0] if len(one) == 1 else one for one in found]

    async def until(self, kind: str, count: int = 1) -> list[Any]:
        await self.page.wait_for_function(
            "([kind, count]) => heard.filter(([one]) => one === kind).length >= count",
            arg=[kind, count],
            timeout=WAIT_MS,
        )
        return await self.heard(kind)

    async def until_state(self, state: str) -> None:
        await self.page.wait_for_function(
            "(state) => headgate.state === state", arg=state, timeout=WAIT_MS
        )

    async def until_reason(self, reason: str) -> None:
        """Until it has said why it waits; on a slow machine that may be over by now."""
        await self.page.wait_for_function(
            "(reason) => heard.some(([kind, , why]) => kind === 'state' && why === reason)",
            arg=reason,
            timeout=WAIT_MS,
        )

    async def seqs(self, name: str) -> list[int]:
        return [one["seq"] for one in await self.heard(f"{name}.event")]
