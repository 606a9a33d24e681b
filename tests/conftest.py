"""What a worker's tests share: real servers and a Spark session, started by who asks first.

A test that only talks to a server takes the fixture; one that breaks the server starts its own:
`with Etcd() as etcd: …; etcd.kill(); etcd.restart()`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest

from headgate.spark.starting.java import find_java
from headgate.tasks import deaths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from tests.scheduling import LongestFirst
    from tests.servers.etcd import Etcd
    from tests.servers.mongodb import MongoReplicaSet
    from tests.servers.nats import Nats
    from tests.servers.postgres import Postgres

INTERRUPTED_S = 20.0
WORKER = "import sys;exec(eval(sys.stdin.readline()))"
"""What pytest-xdist starts a worker with."""

# The same examples in every run, however slow it is: a change is judged by its own faults. New ones
# are looked for with `pytest --hypothesis-profile explore`.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", derandomize=False, deadline=None)
hypothesis.settings.load_profile("repeatable")

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that runs for a minute: a third less processor time until Spark has started."""

# The imports inside the fixtures keep a run of pure tests from loading every client and Spark.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="only what starts neither Spark nor a server"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Every Java starts quickly. A run that is told to end behaves as with Ctrl-C, so that the
    servers end with it; and a run in the background, which a shell keeps from Ctrl-C, leaves the
    programs that it starts free to hear it."""

    def interrupt(*_: object) -> None:
        # Once: `timeout` tells all processes of a run, and the first one its workers.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for worker in workers():
            worker.terminate()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK_START)
    say_errors_plainly()
    # It would look for its plugins in every installed package, in every process.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if Path(__file__).with_name("minutes.py").exists():  # or this is a copy, in a test's folder
        from tests.minutes import Minutes

        config.pluginmanager.register(Minutes(config))
    if hasattr(config, "workerinput"):
        from tests.scheduling import EndsWhatWasShared

        config.pluginmanager.register(EndsWhatWasShared())


def say_errors_plainly() -> None:
    """Not with every local variable of every frame in boxes, which takes up to a second each."""
    import structlog

    console = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    usual = structlog.get_config()["processors"]
    structlog.configure(processors=[*usual[:-1], console])


def pytest_unconfigure() -> None:
    if "tests.forks" in sys.modules:
        sys.modules["tests.forks"].end_forking()


def pytest_keyboard_interrupt() -> None:
    """Workers that were interrupted too end their servers before they are ended themselves."""
    servers = [server for worker in workers() for server in worker.children(recursive=True)]
    psutil.wait_procs(servers, timeout=INTERRUPTED_S)


def workers() -> list[psutil.Process]:
    """The processes that this one has shared its tests among."""
    from tests.waiting import arguments

    return [one for one in psutil.Process().children() if WORKER in arguments(one)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst:
    from tests.scheduling import LongestFirst

    return LongestFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Thousands of tests are there to the end: no look for garbage passes through them again."""
    gc.disable()
    try:
        if hasattr(session.config, "workerinput"):
            from tests.scheduling import import_share

            import_share(session.config)
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        from tests.quick import is_quick

        chosen = [item for item in items if is_quick(item)]
        left_out = [item for item in items if not is_quick(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


STARTED = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[STARTED] = time.monotonic()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that ran into its time limit has failed, whatever became of it then.

    The limit is an exception raised wherever the test happens to be. When that is a task which
    ends on any exception, the test goes on, and would count as passed.
    """
    report = yield
    limit_s = time_limit_s(item)
    if report.when == "call" and report.passed and limit_s:
        took_s = time.monotonic() - item.stash[STARTED]
        if took_s >= limit_s:
            report.outcome = "failed"
            report.longrepr = f"It swallowed its time limit of {limit_s:g} s (took {took_s:.1f} s)."
    return report


def time_limit_s(item: pytest.Item) -> float:
    """What pytest-timeout holds the test to; 0 is no limit."""
    marker = item.get_closest_marker("timeout")
    if marker:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    option = item.config.getoption("timeout")
    return float(item.config.getini("timeout") if option is None else option)


@pytest.fixture(autouse=True)
def _no_deaths() -> Iterator[None]:
    """Roles of different tests share this process: what died in one is no news in the next."""
    yield
    deaths.forget()


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    from tests.servers.etcd import Etcd

    with Etcd() as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[Nats]:
    from tests.servers.nats import Nats

    with Nats() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    from tests.servers.postgres import Postgres

    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mongodb() -> Iterator[MongoReplicaSet]:
    from tests.servers.mongodb import MongoReplicaSet, why_missing

    reason = why_missing()
    if reason:
        pytest.skip(reason)
    with MongoReplicaSet() as servers:
        yield servers


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from headgate.spark.starting.session import build_session

    session = build_session(
        app_name="headgate-tests",
        # More threads than cores, since a lane holds its own; the second 4 is tries per task.
        master="local[4,4]",
        java=find_java(os.environ),
        scratch=tmp_path_factory.mktemp("spark"),
    )
    yield session
    session.stop()
