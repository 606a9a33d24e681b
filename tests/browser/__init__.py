"""Pages and the browser client in a real browser.

Every test of this folder runs in the event loop of the whole session, because the browser does. The
browser is started by the first test that wants a page and shared by all; each page has a context,
and so cookies and stores, of its own.
"""
