#!/bin/sh
# Brings the environment in .venv up to the lock files, or says in one sentence what is missing.
#
# Everything that is installed is pinned with its hash, the installer and the build backends
# included. A fingerprint of all inputs in .venv makes the next call end at once; it is written
# last, so that an interrupted set-up is done again.
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
BIN=$VENV/bin
STAMP=$VENV/.headgate-setup
INPUTS="pyproject.toml requirements/uv.txt requirements/build.txt requirements/dev.txt scripts/setup.sh scripts/chromium.sh"

fail() {
    echo "$1" >&2
    exit 2
}

# A Ctrl-C reaches what runs here, too, which ends by itself.
stopped() {
    step_ends
    echo "Stopped; run it again and it goes on." >&2
    exit 130
}
trap stopped INT

# Says what is being done, and counts its seconds where somebody watches.
counter=
step() {
    if [ ! -t 1 ]; then
        echo "  $1"
        return
    fi
    (
        seconds=0
        while printf '\r  %s: %d s' "$1" $seconds && sleep 1 && kill -0 $$ 2>/dev/null; do
            seconds=$((seconds + 1))
        done
    ) &
    counter=$!
}

step_ends() {
    [ -n "$counter" ] || return 0
    kill "$counter" 2>/dev/null || true
    wait "$counter" 2>/dev/null || true
    counter=
    echo
}

# Says what a command has to say when it has ended: nobody wants the traceback of a Ctrl-C.
afterwards() {
    code=0
    said=$("$@" 2>&1) || code=$?
    step_ends
    [ -z "$said" ] || printf '%s\n' "$said" >&2
    return $code
}

# The version of a Python that is new enough, as "3.11"; nothing for any other command.
version_of() {
    "$1" -c 'import sys
if sys.version_info >= (3, 11): print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        [ -n "$(version_of "$PYTHON")" ] || fail "PYTHON=$PYTHON is not a Python 3.11 or newer; name another one."
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if [ -n "$(version_of "$candidate")" ]; then
            echo "$candidate"
            return
        fi
    done
    fail "Headgate needs Python 3.11 or newer, and none is on the PATH; install one, or say where it is with make PYTHON=/path/to/python3."
}

fingerprint() {
    # shellcheck disable=SC2086
    cat $INPUTS | cksum
}

# The version of the environment that is there, and of use: its commands don't survive a move of
# the folder, and a Python that was asked for by name has to be the one it was made with.
version_at_hand() {
    case "$(cat $BIN/activate 2>/dev/null)" in
    *"$(pwd -P)/$VENV"*) ;;
    *) return ;;
    esac
    found=$(version_of $BIN/python)
    if [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$found" ]; then
        echo "$found"
    fi
}

have=$(version_at_hand)
if [ -n "$have" ] && [ "$(cat $STAMP 2>/dev/null)" = "$(fingerprint)" ]; then
    exit 0
fi

if [ -z "$have" ]; then
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python can't make virtual environments; install its venv package (Debian and Ubuntu: apt install python$(version_of "$python")-venv), then run make again."
    echo "Setting up .venv with Python $(version_of "$python"): about 800 MB, some minutes the first time."
    afterwards "$python" -m venv --clear $VENV
else
    echo "Bringing .venv up to date."
    rm -f $STAMP
fi

# What a later step needs: uv for the installation, the backends for what comes as source.
# .venv may come from elsewhere and lack pip.
$BIN/python -m pip --version >/dev/null 2>&1 || $BIN/python -m ensurepip >/dev/null
step "1/5 the installer (a few seconds)"
afterwards $BIN/python -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: \
    --require-hashes -r requirements/uv.txt -r requirements/build.txt ||
    fail "The installer could not be fetched; check that pip reaches a package index, then run make again."

# uv doesn't read pip's settings, so it gets the package index that pip just used.
setting() {
    printf '%s\n' "$pip_settings" | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | tail -n 1
}
pip_settings=$($BIN/python -m pip --disable-pip-version-check config list 2>/dev/null || true)
index=$(setting index-url)
extra_index=$(setting extra-index-url)
certificates=$(setting cert)
[ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
[ -z "$extra_index" ] || export UV_INDEX="${UV_INDEX:-$extra_index}"
[ -z "$certificates" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$certificates}"
export UV_PYTHON_DOWNLOADS=never

# Compiled here, once: with PYTHONDONTWRITEBYTECODE, which images like to set, every process would
# compile anew what it imports, and each of Headgate's roles is a process.
step "2/5 the dependencies, with Spark and a Java (minutes the first time)"
afterwards $BIN/uv pip sync --quiet --compile-bytecode --python $BIN/python --require-hashes --no-build-isolation \
    requirements/uv.txt requirements/build.txt requirements/dev.txt ||
    fail "The dependencies could not be installed; check that a package index can be reached and that the disk has 3 GB free, then run make again."

step "3/5 headgate (a few seconds)"
afterwards $BIN/uv pip install --quiet --python $BIN/python --no-deps --no-build-isolation --editable . ||
    fail "Headgate itself could not be installed; the lines above say why."
$BIN/python -m compileall -q src || true

# Spark starts without it, too; it takes twice the time then.
step "4/5 an archive of Spark's classes, which halves every start (a minute)"
$BIN/python -m headgate.spark.starting.training >/dev/null 2>&1 || true
step_ends

step "5/5 a Chromium for the tests in a browser, where there is none (20 s)"
afterwards /bin/sh scripts/chromium.sh || true

fingerprint >$STAMP
