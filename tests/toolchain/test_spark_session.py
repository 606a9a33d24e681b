"""The shared Spark session runs Python in its workers, the same Python as the tests."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession


def test_workers_run_the_interpreter_of_the_tests(spark: SparkSession) -> None:
    def interpreters(_: Iterable[int]) -> Iterator[str]:
        import sys as worker_sys

        yield worker_sys.executable

    assert spark.sparkContext.parallelize([1, 2], 2).mapPartitions(interpreters).collect() == [
        sys.executable,
        sys.executable,
    ]
