"""Creates topics automatically: `auto.create.topics.enable`, and the internal topics.

Called by the handlers of Metadata and FindCoordinator. A CreateTopics request goes to the controller in the
background, one per topic and at most IN_FLIGHT_MAX per client; the client gets LEADER_NOT_AVAILABLE and
retries. Failed creations are not retried here: the client's next request starts another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from ottla.metadata.config import BrokerConfig
from ottla.ports.tasks import TaskSet
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, is_legal_topic_name
from ottla.security.principals import Principal
from ottla.server.dispatch.dispatcher import Request
from ottla.server.dispatch.throttling import ClientThrottle

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 100
"""Concurrent creations for clients of one principal at one address."""

CreateTopics = Callable[[CreateTopicsRequest], Awaitable[CreateTopicsResponse]]


class TopicCreator:
    """Kafka's AutoTopicCreationManager."""

    def __init__(
        self, config: BrokerConfig, create_topics: CreateTopics, throttle: ClientThrottle | None = None
    ) -> None:
        self._config = config
        self._throttle = throttle
        self._create_topics = create_topics
        self._in_flight: set[str] = set()
        self._by_client: Counter[tuple[Principal, str]] = Counter()
        """Creations in flight by client."""
        self._tasks = TaskSet()

    def request(self, name: str, live_brokers: int, by: Request) -> ErrorCode:
        """Create `name` because the request `by` names it; return the error to respond with. The creation is
        recorded in the client's mutation quota, which does not limit it."""
        if not is_legal_topic_name(name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        client = by.principal, by.connection.peer_host
        if name not in INTERNAL_TOPICS and self._by_client.get(client, 0) >= IN_FLIGHT_MAX:
            return ErrorCode.LEADER_NOT_AVAILABLE  # a later request creates it
        topic = self._topic(name)
        if topic.replication_factor > live_brokers:
            return ErrorCode.INVALID_REPLICATION_FACTOR
        if name not in self._in_flight:
            if self._throttle is not None:
                self._throttle.mutations(by, strict_from=None).record(topic.num_partitions)
            self._in_flight.add(name)
            self._by_client[client] += 1
            task = self._tasks.start(self._create(topic))
            task.add_done_callback(partial(self._created, name, client))
        return ErrorCode.LEADER_NOT_AVAILABLE

    async def stop(self) -> None:
        await self._tasks.stop()

    def _created(self, name: str, client: tuple[Principal, str], task: asyncio.Task[None]) -> None:
        self._in_flight.discard(name)
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def _topic(self, name: str) -> CreateTopicsRequest.CreatableTopic:
        config = self._config
        if name == OFFSETS_TOPIC:
            prefix = "offsets.topic."
            settings = {"cleanup.policy": "compact", "compression.type": "producer"}
        elif name == TRANSACTIONS_TOPIC:
            prefix = "transaction.state.log."
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
                "unclean.leader.election.enable": "false",
            }
        else:
            return CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=config.get_int("num.partitions"),
                replication_factor=config.get_int("default.replication.factor"),
            )
        settings["segment.bytes"] = str(config.get_int(f"{prefix}segment.bytes"))
        return CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=config.get_int(f"{prefix}num.partitions"),
            replication_factor=config.get_int(f"{prefix}replication.factor"),
            configs=[CreateTopicsRequest.CreatableTopicConfig(name=k, value=v) for k, v in settings.items()],
        )

    async def _create(self, topic: CreateTopicsRequest.CreatableTopic) -> None:
        timeout_ms = self._config.get_int("request.timeout.ms")
        try:
            response = await self._create_topics(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms))
            for result in response.topics:
                if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    log.warning(
                        "Automatic creation of topic %s failed: %s %s",
                        result.name,
                        ErrorCode.of(result.error_code).name,
                        result.error_message or "",
                    )
        except Exception as e:
            log.warning("Automatic creation of topic %s failed: %s", topic.name, e)
