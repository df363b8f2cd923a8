"""docs/guides/pipeline/streams.md, run as its reader would: every example writes what the page says."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from ottla_operator.resources import Pipeline
from ottla_operator.resources.loading import parse_resource
from ottla_pipeline.lake.manifest import committed_files
from tests.judges.postgres import PASSWORD, PostgreSql, postgresql
from tests.judges.python_jobs import PythonJob, create_topics, in_any_order, produce, read_committed
from tests.selection import ROOT

pytestmark = pytest.mark.timeout(600)
PAGE = (ROOT / "docs/guides/pipeline/streams.md").read_text()
CUSTOMERS = {"ann": "NO"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def examples() -> list[tuple[str, list[Any]]]:
    """The text of each function, and the records that the page says it writes."""
    pairs = re.findall(r"^```python\n(def .*?)^```.*?^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [(text, [json.loads(line) for line in records.splitlines()]) for text, records in pairs]


def input_rows() -> Iterator[tuple[str, str | None, Any]]:
    for topic, key, value in re.findall(
        r"^\| (orders|payments|customers) \|(.*?)\|(.*?)\|$", PAGE, re.MULTILINE
    ):
        text = value.strip().strip("`")
        yield topic, key.strip() or None, json.loads(text) if text.startswith("{") else None


def resource(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.fixture(scope="module")
def database() -> Iterator[PostgreSql]:
    with postgresql() as server:
        server.execute("CREATE TABLE customers (customer text PRIMARY KEY, country text)")
        yield server


def make_tables(folder: Path, database: PostgreSql) -> None:
    rows = list(CUSTOMERS.items())
    columns = {"customer": [name for name, _ in rows], "country": [country for _, country in rows]}
    write_deltalake(folder / "delta", pa.table(columns))
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE customers (customer TEXT, country TEXT)")
        connection.executemany("INSERT INTO customers VALUES (?, ?)", rows)
    database.execute(
        "".join(f"INSERT INTO customers VALUES ('{name}', '{country}');" for name, country in rows)
    )
    (folder / "password").write_text(PASSWORD)


ICEBERG = """
def with_iceberg(job):
    job.spark.sql("CREATE TABLE lake.shop.customers (customer STRING, country STRING) USING iceberg")
    job.spark.sql("INSERT INTO lake.shop.customers VALUES {rows}")
    everything(job)
"""


@pytest.mark.budget(60)  # all examples of the page, in one driver
def test_every_example_writes_what_the_page_says(
    bootstrap: str, quick_spark: None, tmp_path: Path, database: PostgreSql
) -> None:
    declared, tables, *_ = [*blocks("yaml")[:1], *(text for text in blocks("yaml") if "packages:" in text)]
    totals = resource(declared)["spec"]["config"]
    written = re.search(
        r"`totals`, the job above, writes\n\n```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE
    )
    assert written is not None
    expected = {"totals": [json.loads(line) for line in written[1].splitlines()]}
    texts = [*blocks("python")[:1], totals["source"]]
    for text, records in examples():
        texts.append(text)
        name = re.match(r"def (\w+)\(", text)
        assert name is not None
        expected[name[1]] = records
    assert len(expected) == 1 + len(blocks("python")) - 1, "an example lacks its records"
    calls = "".join(f"    {name}(job)\n" for name in expected)
    rows = ", ".join(f"('{name}', '{country}')" for name, country in CUSTOMERS.items())
    texts += [f"def everything(job):\n{calls}", ICEBERG.format(rows=rows)]
    spark = json.loads(json.dumps(resource(tables)["config"]["spark"]).replace("/data/", f"{tmp_path}/"))
    spark["settings"] |= {"spark.sql.shuffle.partitions": "1"}
    source = "\n".join(texts).replace("/data/", f"{tmp_path}/").replace("db:5432", database.address)

    create_topics(bootstrap, ["orders", "payments", *expected])
    create_topics(bootstrap, ["customers"], **{"cleanup.policy": "compact"})
    for topic, key, value in input_rows():
        produce(bootstrap, topic, [(key, value)])
    make_tables(tmp_path, database)
    with PythonJob(
        tmp_path / "job", bootstrap, source, "with_iceberg", trigger={"availableNow": True}, spark=spark
    ) as job:
        job.finish()
    for name, records in expected.items():
        found = [value for _, value in read_committed(bootstrap, name)]
        assert in_any_order(found) == in_any_order(records), name
    assert [key for key, _ in read_committed(bootstrap, "landed")] == ["o1", "o2", "o2", "o3", "o4", "o5"]
    landed = in_any_order(expected["landed"])
    assert in_any_order(DeltaTable(str(tmp_path / "orders")).to_pyarrow_table().to_pylist()) == landed
    files = ds.dataset(committed_files(tmp_path / "orders-files"), format="parquet")
    assert in_any_order(files.to_table().to_pylist()) == landed


def test_the_resources_of_the_page_are_valid() -> None:
    declared, volume, *_ = [resource(text) for text in blocks("yaml")]
    spec = declared["spec"]
    for changes in ({}, {**volume["spec"]}):
        pipeline, problems = parse_resource("Pipeline", {"name": "totals"}, {**spec, **changes})
        assert isinstance(pipeline, Pipeline), problems
        assert list(pipeline.problems()) == []
