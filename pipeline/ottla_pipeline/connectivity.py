"""Whether any broker answers, asked before Spark is started: its connector tries for three minutes.

Called by the jobs' commands. A TCP connection is all that is asked for, so that it holds for every listener.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

TIMEOUT_S = 5.0


class BrokersUnreachable(Exception):
    """No broker of the bootstrap list can be connected to; the message says why, address by address."""


def check_reachable(bootstrap: str, timeout_s: float = TIMEOUT_S) -> None:
    """Connect to the first of `HOST:PORT,…` that can be connected to. Raises BrokersUnreachable."""
    reasons = []
    for host, port in _addresses(bootstrap):
        try:
            socket.create_connection((host, port), timeout_s).close()
            return
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    raise BrokersUnreachable(f"no broker answers ({'; '.join(reasons)}); is the cluster up?")


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
    """What to put after the error's own words: nothing, unless it is for want of brokers."""
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
        return ""  # what one may not see can be anything
    if factor <= brokers:
        return ""
    there = "1 broker is" if brokers == 1 else f"{brokers} brokers are"
    return (
        f": transactions need the topic {TOPIC}, which is to have {factor} replicas, and {there} there. "
        f"Start more, or set {FACTOR} (and transaction.state.log.min.isr) to {brokers}"
    )
