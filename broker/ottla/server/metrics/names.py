"""The spellings of metrics of Kafka's MBeans that other people's dashboards use (`ottla.metrics.names`).

    strimzi           as by the rules of Strimzi's examples for the JMX exporter; what the other modules use
    metrics-reporter  as Strimzi's metrics reporter names them
    confluent         as by the rules of Confluent's monitoring stacks for the JMX exporter

Called by the page of metrics. Names of kafka_exporter, of the process and of Ottla are the same in all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ottla.server.metrics.exposition import Family, Sample

STRIMZI, METRICS_REPORTER, CONFLUENT = "strimzi", "metrics-reporter", "confluent"

_OF_MBEANS: Final = re.compile(r"kafka_(cluster|controller|coordinator|log|network|server)_")
_SOCKETS: Final = "kafka_server_socket_server_metrics_"
_QUOTAS: Final = "kafka_server_quota_"
_IDLE: Final = "avgidle_percent"
_CONFLUENT: Final[Mapping[str, str]] = {
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": (
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate"
    ),
    f"{_SOCKETS}connection_count": "kafka_server_socketservermetrics_connection_count",
    f"{_SOCKETS}connection_creation": "kafka_server_socketservermetrics_connection_creation_total",
}
_CONFLUENT_LABELS: Final[Mapping[str, str]] = {
    "networkProcessor": "network_processor",
    "delayedOperation": "delayedoperation",
    "logDirectory": "logdirectory",
}


def renamed(families: Iterable[Family], names: str) -> Iterator[Family]:
    """The families in this spelling."""
    for family in families:
        if names == STRIMZI or not _OF_MBEANS.match(family.name):
            yield family
        elif family.name.startswith(_QUOTAS):
            yield from _by_resource(family)
        elif names == METRICS_REPORTER:
            yield _of_reporter(family)
        else:
            yield _of_confluent(family)


def _per_second(family: Family) -> str:
    """Kafka's name of a meter, and without the underscore that Strimzi's rules put before `percent`."""
    name = family.name
    if family.kind == "counter" and not name.startswith(_SOCKETS):
        name += "persec"
    return name.replace(_IDLE, "avgidlepercent")


def _of_reporter(family: Family) -> Family:
    return family._replace(name=_per_second(family))


def _of_confluent(family: Family) -> Family:
    name = _CONFLUENT.get(family.name) or _per_second(family)
    labels = tuple(_CONFLUENT_LABELS.get(label, label) for label in family.labels)
    samples = family.samples
    if name.endswith("_maxlag"):
        labels, samples = ("clientid",), ((("Replica",), value) for _, value in samples)
    return Family(name, "gauge", family.help, labels, samples)


def _by_resource(family: Family) -> Iterator[Family]:
    """A family for each kind of quota, instead of a label."""
    by_resource: defaultdict[str, list[Sample]] = defaultdict(list)
    for (resource, *who), value in family.samples:
        by_resource[resource.lower()].append((tuple(who), value))
    attribute = family.name.removeprefix(_QUOTAS)
    for resource, samples in by_resource.items():
        yield family._replace(
            name=f"kafka_server_{resource}_{attribute}", labels=("user", "client_id"), samples=samples
        )
