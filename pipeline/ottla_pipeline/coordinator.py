"""Why no broker coordinates one's transactions: what clients say is that their time is up, and no more.

Called by whoever writes in transactions, when `init_transactions` has timed out. A cluster's first
transaction has its brokers make the topic __transaction_state. With fewer of them than it shall have replicas
(3 by default) they cannot, answer COORDINATOR_NOT_AVAILABLE, and clients ask again until they give up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

TOPIC: Final = "__transaction_state"
FACTOR: Final = "transaction.state.log.replication.factor"
REQUEST_S: Final = 10.0


def hint(settings: Mapping[str, Any], error: KafkaError) -> str:
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
