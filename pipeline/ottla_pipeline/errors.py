"""Errors that end a job, and the diagnosis of their causes: Spark's messages, unreachable brokers,
unavailable transaction coordinators.

Used by the jobs' command, by the jobs, and by everything that writes in transactions.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType


class JobStartError(Exception):
    """The job cannot start or continue with its folders, topics or schemas; the message says why and what
    to do."""


_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*: \S")


def error_summary(error: Exception) -> str:
    """The essential lines of a Spark error message, without query plans and stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback (most recent call last):" in str(error).partition("\tat ")[0]:
        # An error of a Python task: its message is below the Python stack and above the Java stack.
        python = [line for line in lines[1:] if _PYTHON_ERROR.match(line)]
        if python:
            return python[0][:600]
    essential = [
        line for line in lines if not line.startswith(("at ", "=== ", "Current ", "{", "JVM stacktrace"))
    ]
    return " ".join(essential[:3])[:600]


TIMEOUT_S = 5.0


class BrokersUnreachable(Exception):
    """No address of the bootstrap list accepts a connection; the message has the reason for each address."""


def check_reachable(bootstrap: str, timeout_s: float = TIMEOUT_S) -> None:
    """Connects to the first address of `HOST:PORT,…` that accepts a TCP connection. Raises
    BrokersUnreachable.

    Called before Spark starts: Spark's Kafka connector would retry for three minutes.
    """
    reasons = []
    for host, port in _addresses(bootstrap):
        try:
            socket.create_connection((host, port), timeout_s).close()
            return
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    raise BrokersUnreachable(f"no broker accepts connections ({'; '.join(reasons)}); is the cluster up?")


def _addresses(bootstrap: str) -> Iterable[tuple[str, int]]:
    for part in bootstrap.split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise BrokersUnreachable(f"bootstrap {bootstrap}: must be HOST:PORT[,HOST:PORT…]")
        # `NAME://`, which Kafka's clients accept too, and brackets around IPv6.
        yield host.rpartition("://")[2].strip("[]"), int(port)


TOPIC: Final = "__transaction_state"
FACTOR: Final = "transaction.state.log.replication.factor"
REQUEST_S: Final = 10.0


def coordinator_hint(settings: Mapping[str, Any], error: KafkaError) -> str:
    """The text to append to a time-out of `init_transactions`: why no transaction coordinator is available.

    The first transaction of a cluster creates the topic __transaction_state. With fewer brokers than its
    replication factor (3 by default) the creation fails, brokers answer COORDINATOR_NOT_AVAILABLE, and
    clients retry until they time out. Returns "" for any other cause.
    """
    if error.code() != KafkaError._TIMED_OUT:
        return ""
    admin = AdminClient(dict(settings))
    try:
        known = admin.list_topics(timeout=REQUEST_S)
        if TOPIC in known.topics:
            return ""
        resource = ConfigResource(ResourceType.BROKER, str(min(known.brokers)))
        configs = admin.describe_configs([resource], request_timeout=REQUEST_S)[resource].result()
        factor, brokers = int(configs[FACTOR].value), len(known.brokers)
    except (KafkaException, LookupError, ValueError):
        return ""  # without the permission to describe, the cause is unknown
    if factor <= brokers:
        return ""
    available = "1 broker is" if brokers == 1 else f"{brokers} brokers are"
    return (
        f": transactions need the topic {TOPIC} with {factor} replicas, but {available} available. "
        f"Start more, or set {FACTOR} (and transaction.state.log.min.isr) to {brokers}"
    )
