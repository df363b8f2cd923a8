"""The low-level client: sends single requests of the protocol, for tools that the other clients do not cover.

    async with RequestClient(bootstrap_servers="127.0.0.1:9092") as client:
        leader = await client.leader(("orders", 0))
        response = await client.request(messages.DescribeLogDirsRequest(topics=None), leader)

Messages are the classes of `ottla.protocol.messages`; docs/reference/protocol-messages.md lists their fields.
Brokers are addressed by id. The client takes their addresses from the metadata, which it keeps fresh, opens
one connection to each broker on demand, and uses the highest version that both sides support. Requests are
pipelined. Invariants: requests to one broker are sent in the order of the calls; each request is sent once
and has one result; the client ignores error codes of responses, except in `leader`, `coordinator` and
`versions`. It must be used from one thread and event loop only: see `ottla.client.blocking`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from ottla.client import errors
from ottla.client.admin.fan_out import COORDINATOR, client_error
from ottla.client.core.cluster import GROUP, TRANSACTION, Cluster
from ottla.client.core.config import ClientConfig
from ottla.client.core.types import ANY_NODE, Node, TopicPartition, UnsentRequest
from ottla.client.metrics import Metric, Reporting, of_client, of_requests
from ottla.client.network import Network, RequestNotSent
from ottla.client.network_loop import NetworkLoop
from ottla.environment import environment
from ottla.protocol import frames
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import Message, Versions
from ottla.wire.connection import UnsupportedApi, resolve

ANY_BROKER: Final = ANY_NODE
"""In place of a broker id: the broker with the fewest requests in flight among those that can be reached."""
_COORDINATOR_VERSION_MAX: Final = 3
"""The last version of FindCoordinator for a single key."""
_MISSES_MAX: Final = 2
"""How many responses may lack a topic or partition: brokers learn of a new one with a delay."""


class RequestClient:
    """Sends requests to brokers by id. Settings are Kafka's, as keywords or a mapping of dotted keys; see
    `ClientConfig`."""

    def __init__(self, settings: Mapping[str, object] | None = None, /, **keywords: object) -> None:
        """Kafka's dotted keys in a mapping, or keywords with underscores. Raises ConfigError."""
        self.config = ClientConfig.of(settings, **keywords)
        self._timeout_s = self.config.request_timeout_ms / 1000
        self._api_timeout_s = self.config.default_api_timeout_ms / 1000
        self._uniform = environment.get().random.uniform
        self._parts: tuple[Cluster, Network, NetworkLoop] | None = None
        self._reporting = Reporting(
            self.config.client_id,
            self.config.metric_reporters,
            self.config.window.window_s,
            self.measurements,
        )

    # --- life ---

    async def start(self) -> None:
        """Connect to one of bootstrap.servers and read the cluster's brokers, within default.api.timeout.ms.
        Raises ClientError."""
        if self._parts is not None:
            raise errors.IllegalStateError("the request client is started already")
        config = self.config
        cluster = Cluster(
            uniform=self._uniform,
            metadata_max_age_ms=config.metadata_max_age_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
            allow_auto_topic_creation=False,
        )
        network = Network(cluster, config, uniform=self._uniform, changed=self._changed)
        network_loop = NetworkLoop(cluster, network, request_timeout_s=self._timeout_s)
        self._parts = cluster, network, network_loop
        network_loop.start([])
        self._reporting.start()
        try:
            await self._metadata_until(lambda: bool(cluster.nodes), "no broker returned metadata")
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close all connections; requests in flight fail with NetworkError. A second call does nothing."""
        if self._parts is None:
            return
        _, network, network_loop = self._parts
        self._reporting.stop()
        network_loop.stop()
        self._parts = None
        await network.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _running(self) -> tuple[Cluster, Network, NetworkLoop]:
        if self._parts is None:
            raise errors.IllegalStateError("the request client is not started")
        return self._parts

    def _changed(self) -> None:
        if self._parts is not None:
            self._parts[2].wake()

    # --- requests ---

    def send(
        self,
        message: Message,
        broker_id: int = ANY_BROKER,
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[Any]:
        """Send a request without waiting; the future resolves to the response. Any number of requests may be
        in flight; a broker responds in the order of the requests.

        `version`: the version to use, instead of the highest that both sides support. `timeout_ms`: for the
        connection and the response together, request.timeout.ms if None. Produce with acks=0 has no response:
        its future resolves to None when it is sent.

        The future raises UnsupportedVersionError, RequestTimedOutError, NetworkError (the connection failed;
        the broker may have processed the request), AuthenticationError, BrokerNotAvailableError for an id
        that is not in the metadata, and ProtocolError for a message whose fields the version does not have.
        Error codes in a response raise nothing. Raises TypeError for an object that is no request,
        IllegalStateError.
        """
        if frames.REQUESTS.get(getattr(message, "api_key", -1)) is not type(message):
            raise TypeError(f"{type(message).__name__} is not a request: see ottla.protocol.messages")
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        expects_response = not (isinstance(message, m.ProduceRequest) and message.acks == 0)
        return self._send(
            UnsentRequest(
                broker_id,
                message,
                None,
                timeout_s,
                keeps=True,
                expects_response=expects_response,
                version=version,
            )
        )

    def _send(self, unsent: UnsentRequest) -> asyncio.Future[Any]:
        cluster, network, _ = self._running()
        broker_id = unsent.node_id
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if broker_id != ANY_BROKER and broker_id not in cluster.nodes:
            cluster.invalidate()
            self._changed()
            known = ", ".join(map(str, sorted(cluster.nodes)))
            missing = f"broker {broker_id} is not in the cluster, whose brokers are {known}"
            resolve(future, errors.BrokerNotAvailableError(missing))
            return future
        name = type(unsent.message).__name__
        others = len(cluster.nodes) - 1 if broker_id == ANY_BROKER else 0

        def on_response(outcome: Any) -> None:
            nonlocal others
            if isinstance(outcome, RequestNotSent) and others > 0:
                others -= 1
                network.send(unsent, on_response)
            else:
                resolve(future, _error(outcome, name) if isinstance(outcome, Exception) else outcome)

        network.send(unsent, on_response)
        return future

    async def request(
        self,
        message: Message,
        broker_id: int = ANY_BROKER,
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Send a request and return the response. Refreshes the metadata first if the broker id is unknown.
        Raises as `send` and its future do."""
        cluster, _, _ = self._running()
        if broker_id != ANY_BROKER and broker_id not in cluster.nodes:
            await self.refresh_metadata()
        return await self.send(message, broker_id, version=version, timeout_ms=timeout_ms)

    async def versions(self, broker_id: int = ANY_BROKER) -> dict[type[Message], Versions]:
        """The request classes that a broker supports, with the versions that the client supports, too. Raises
        as `request` does."""
        response: m.ApiVersionsResponse = await self.request(m.ApiVersionsRequest(), broker_id, version=0)
        _raise_for_code(response.error_code, "ApiVersions")
        found = {}
        for row in response.api_keys:
            ours = frames.REQUESTS.get(row.api_key)
            if ours is not None:
                common = Versions(
                    max(row.min_version, ours.min_version), min(row.max_version, ours.max_version)
                )
                if common.lowest <= common.highest:
                    found[ours] = common
        return found

    # --- the cluster ---

    @property
    def brokers(self) -> dict[int, Node]:
        """The brokers of the last metadata, by id."""
        return dict(self._running()[0].nodes)

    @property
    def controller(self) -> int:
        """The controller id in the last metadata; -1 if there is no controller."""
        return self._running()[0].controller_id

    @property
    def cluster_id(self) -> str | None:
        """The cluster id."""
        return self._running()[0].cluster_id

    async def refresh_metadata(self) -> None:
        """Refresh the metadata, for example after NOT_LEADER_OR_FOLLOWER or NOT_CONTROLLER. Raises
        RequestTimedOutError after default.api.timeout.ms."""
        cluster, _, _ = self._running()
        before = cluster.refreshed_at
        cluster.invalidate()
        await self._metadata_until(lambda: cluster.refreshed_at > before, "no broker returned metadata")

    async def leader(self, topic_partition: tuple[str, int]) -> int:
        """The id of the broker that leads a partition, as of the last metadata; waits for a leader. Raises
        UnknownTopicOrPartitionError, TopicAuthorizationFailedError, RequestTimedOutError after
        default.api.timeout.ms."""
        cluster, _, _ = self._running()
        tp = TopicPartition(*topic_partition)
        cluster.add(tp.topic, asyncio.get_running_loop().time())
        misses = 0

        def has_leader() -> bool:
            nonlocal misses
            if cluster.leader(tp) is not None:
                return True
            error = cluster.error(tp.topic)
            known = cluster.topics.get(tp.topic)
            if known is not None and not known.partitions and error is not ErrorCode.NONE:
                if cluster.fatal_error(tp.topic):
                    _raise_for_code(error, str(tp))
                misses += error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif known is not None and tp.partition not in known.partitions:
                misses += 1
            if misses > _MISSES_MAX:
                raise errors.UnknownTopicOrPartitionError(str(tp))
            cluster.invalidate(tp)
            return False

        await self._metadata_until(has_leader, f"{tp} has no leader")
        found = cluster.leader(tp)
        assert found is not None
        return found.node_id

    async def coordinator(self, key: str, *, transactional: bool = False) -> int:
        """The id of the broker that coordinates a group or a transactional id; waits for a coordinator.
        Raises ClientError, RequestTimedOutError after default.api.timeout.ms."""
        cluster, _, _ = self._running()
        key_type = TRANSACTION if transactional else GROUP
        request = m.FindCoordinatorRequest(key=key, key_type=key_type)
        unsent = UnsentRequest(ANY_NODE, request, None, self._timeout_s, _COORDINATOR_VERSION_MAX, keeps=True)
        last: errors.ClientError | None = None
        try:
            async with asyncio.timeout(self._api_timeout_s):
                attempt = 0
                while True:
                    try:
                        response = await self._send(unsent)
                        _raise_for_code(response.error_code, response.error_message or key)
                    except errors.BrokerError as problem:
                        if problem.code not in COORDINATOR:
                            raise
                        last = problem
                    else:
                        node = Node(response.node_id, response.host, response.port)
                        cluster.take_coordinator(key_type, key, node)
                        return node.id
                    await asyncio.sleep(self.config.retry_pause_s(attempt, self._uniform))
                    attempt += 1
        except TimeoutError:
            raise errors.RequestTimedOutError(f"no coordinator of {key!r}; last error: {last}") from last

    async def _metadata_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        cluster, _, network_loop = self._running()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._api_timeout_s
        while not condition():
            if cluster.authentication_error is not None:
                raise errors.typed(cluster.authentication_error)
            try:
                await network_loop.metadata(max(deadline - loop.time(), 0))
            except TimeoutError:
                raise errors.RequestTimedOutError(
                    f"{otherwise} within default.api.timeout.ms={self.config.default_api_timeout_ms}"
                ) from None
            self._running()

    # --- metrics ---

    def metrics(self) -> dict[str, float]:
        """Metrics of the whole client by Kafka's names."""
        return of_client(self.measurements())

    def measurements(self) -> list[Metric]:
        """All metrics, those of each broker included; none while the client is not started."""
        if self._parts is None:
            return []
        _, network, _ = self._parts
        return list(of_requests("request-client", network.connections, network.stats, network.now()))


def _error(problem: Exception, where: str) -> Exception:
    if isinstance(problem, TimeoutError):
        return errors.RequestTimedOutError(f"{where}: {str(problem) or 'no response in time'}")
    if isinstance(problem, OSError | KafkaError | UnsupportedApi):
        return client_error(problem, where)
    return problem


def _raise_for_code(code: int, where: str) -> None:
    if code:
        raise errors.for_code(code, where)
