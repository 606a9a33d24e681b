"""What a page does behind the test's back."""

from __future__ import annotations

from playwright.async_api import ConsoleMessage, Error, Page

REFUSED = "Content Security Policy"
"""In every line with which a browser says that a policy forbids something."""


class Watch:
    """`faults` are the errors that nobody has caught, and what the page's policy has refused."""

    def __init__(self, page: Page) -> None:
        self.faults: list[str] = []
        page.on("pageerror", self._error)
        page.on("console", self._said)

    def _error(self, error: Error) -> None:
        self.faults.append(f"uncaught: {error}")

    def _said(self, message: ConsoleMessage) -> None:
        if REFUSED in message.text or "TrustedHTML" in message.text:
            self.faults.append(message.text)
