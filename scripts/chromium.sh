#!/bin/sh
# A Chromium for the tests in a browser: the one on the PATH, or Debian's, where it may be installed.
#
# Nothing fails without one: those tests are skipped then, and say how to get it.
set -eu

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then
        exit 0
    fi
done
[ "$(id -u 2>/dev/null)" = 0 ] || exit 0
command -v apt-get >/dev/null || exit 0
# Elsewhere the package of that name is a snap, which no container starts.
grep -qx 'ID=debian' "${OS_RELEASE:-/etc/os-release}" 2>/dev/null || exit 0

# With lists of packages that are there already, as a rule; an image has none.
install() {
    DEBIAN_FRONTEND=noninteractive timeout 300 \
        apt-get install -qq --yes --no-install-recommends chromium >/dev/null 2>&1
}
install && exit 0
timeout 120 apt-get update -qq >/dev/null 2>&1 && install ||
    echo "Chromium could not be installed: the tests in a browser will be skipped." >&2
