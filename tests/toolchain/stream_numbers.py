"""A program of its own: streams ten numbers out of a Python data source, on whatever Java there is.

Prints the source of the Java and the sum. It runs in a process of its own because a process that
once started a JVM keeps it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headgate.spark.java import find_java

LAST = 10


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number INT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NumbersReader()


class NumbersReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"read": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"read": LAST}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["read"], end["read"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        first, last = partition.value
        return iter([(number,) for number in range(first + 1, last + 1)])


def main() -> None:
    java = find_java(os.environ)
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    seen: list[int] = []

    def collect(batch: DataFrame, _: int) -> None:
        rows: list[Any] = batch.collect()
        seen.extend(row.number for row in rows)

    spark.dataSource.register(Numbers)
    numbers = spark.readStream.format("numbers").load()
    query = numbers.writeStream.foreachBatch(collect).trigger(availableNow=True).start()
    finished = query.awaitTermination(100)
    spark.stop()
    print(java.source, java.version, finished, sum(seen))  # noqa: T201 - a program


if __name__ == "__main__":
    main()
