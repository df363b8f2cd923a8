"""The spellings of metrics' names by `ottla.metrics.names`: as the dashboards of others ask for them."""

from __future__ import annotations

import asyncio
import re

import pytest

from ottla.metadata.config import BrokerConfig, ConfigError
from ottla.server.metrics.exposition import Family, counter, gauge, write
from ottla.server.metrics.names import CONFLUENT, METRICS_REPORTER, STRIMZI, renamed
from ottla_operator.platform.loads import parse_counters
from tests import monitoring

FAMILIES = (
    Family(
        "kafka_server_brokertopicmetrics_bytesin", "counter", "", ("topic",), [(("",), 9), (("orders",), 7)]
    ),
    gauge("kafka_network_socketserver_networkprocessoravgidle_percent", "", 0.5),
    gauge("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", "", 0.5),
    Family(
        "kafka_server_socket_server_metrics_connection_creation",
        "counter",
        "",
        ("listener", "networkProcessor"),
        [(("T", "0"), 3)],
    ),
    Family(
        "kafka_server_quota_byte_rate",
        "gauge",
        "",
        ("resource", "user", "clientId"),
        [(("Produce", "alice", "c"), 1), (("Fetch", "alice", "c"), 2)],
    ),
    gauge("kafka_server_replicafetchermanager_maxlag", "", 4),
    counter("kafka_server_sessionexpirelistener_zookeeperdisconnects", "", 1),
    gauge("kafka_log_logcleaner_cleaner_recopy_percent", "", 80),
    Family("kafka_log_log_logendoffset", "gauge", "", ("topic", "partition"), [(("orders", "0"), 5)]),
    gauge("kafka_brokers", "", 3),
    counter("ottla_quota_throttles", "", 1),
)
SAME = {
    "kafka_log_logcleaner_cleaner_recopy_percent 80.0",
    "kafka_brokers 3.0",
    "ottla_quota_throttles_total 1.0",
}
OF = {
    METRICS_REPORTER: {
        'kafka_server_brokertopicmetrics_bytesinpersec_total{topic="orders"} 7.0',
        "kafka_network_socketserver_networkprocessoravgidlepercent 0.5",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent 0.5",
        'kafka_server_socket_server_metrics_connection_creation_total{listener="T",networkProcessor="0"} 3.0',
        'kafka_server_produce_byte_rate{client_id="c",user="alice"} 1.0',
        'kafka_server_fetch_byte_rate{client_id="c",user="alice"} 2.0',
        "kafka_server_replicafetchermanager_maxlag 4.0",
        "kafka_server_sessionexpirelistener_zookeeperdisconnectspersec_total 1.0",
        *SAME,
    },
    CONFLUENT: {
        'kafka_server_brokertopicmetrics_bytesinpersec{topic="orders"} 7.0',
        "kafka_network_socketserver_networkprocessoravgidlepercent 0.5",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate 0.5",
        'kafka_server_socketservermetrics_connection_creation_total{listener="T",network_processor="0"} 3.0',
        'kafka_server_produce_byte_rate{client_id="c",user="alice"} 1.0',
        'kafka_server_replicafetchermanager_maxlag{clientid="Replica"} 4.0',
        "kafka_server_sessionexpirelistener_zookeeperdisconnectspersec 1.0",
        *SAME,
    },
    STRIMZI: {
        'kafka_server_brokertopicmetrics_bytesin_total{topic="orders"} 7.0',
        "kafka_network_socketserver_networkprocessoravgidle_percent 0.5",
        'kafka_server_quota_byte_rate{clientId="c",resource="Produce",user="alice"} 1.0',
        *SAME,
    },
}


def spelled(row: monitoring.Row, names: str) -> str:
    """The names of a metric of the page's table in a spelling."""
    is_counter = row.kind == "counter"
    labels = tuple(sorted(row.labels, key="resource user clientId".find))
    if row.name.startswith("kafka_server_quota_"):
        labels = ("resource", "user", "clientId")
    resource = "Request" if row.name.endswith("_request_time") else "Produce"
    values = (resource if label == "resource" else "" for label in labels)
    family = Family(
        row.name.removesuffix("_total") if is_counter else row.name,
        "counter" if is_counter else "gauge",
        "",
        labels,
        [(tuple(values), 0.0)],
    )
    return " ".join(f"{f.name}_total" if f.kind == "counter" else f.name for f in renamed([family], names))


def test_the_page_has_a_table_of_all_names_that_differ() -> None:
    expected = [
        tuple(spelled(row, names) for names in (STRIMZI, METRICS_REPORTER, CONFLUENT))
        for row in monitoring.tables()["Brokers"]
    ]
    different = [names for names in expected if len(set(names)) > 1]
    found = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \|$", monitoring.METRICS.read_text(), re.MULTILINE)
    assert found == different


def page(names: str) -> str:
    return asyncio.run(write(renamed(FAMILIES, names))).decode()


@pytest.mark.parametrize("names", OF)
def test_names_and_labels_are_spelled_as_the_setting_says(names: str) -> None:
    assert set(page(names).splitlines()) >= OF[names]


@pytest.mark.parametrize("names", OF)
def test_no_name_is_exported_twice(names: str) -> None:
    found = re.findall(r"^# TYPE (\S+)", page(names), re.MULTILINE)
    assert len(found) == len(set(found)) == len(FAMILIES) + (names != STRIMZI)


@pytest.mark.parametrize("names", OF)
def test_the_operator_reads_loads_in_every_spelling(names: str) -> None:
    found = parse_counters(page(names))
    assert found.bytes_in == {"orders": 7}
    assert found.end_offsets == {("orders", 0): 5}


def test_another_spelling_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ottla.metrics.names"):
        BrokerConfig.from_properties({"broker.id": "1", "ottla.metrics.names": "datadog"})
