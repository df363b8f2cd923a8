"""Clients that send as much as they can, and do not heed throttle times, while an administrator sets,
changes and removes their quotas: producer_byte_rate, consumer_byte_rate and controller_mutation_rate, of
client-ids or of a user with a client-id, as the seed decides. Other clients have no quota.

A quota is each broker's own. What a broker promises, as Kafka does, with the defaults of `quota.window.num`
(11) and `quota.window.size.seconds` (1): it measures a rate over the last 11 windows and a part of a twelfth,
and an idle client may use the amount of ten windows at once.

Checked, *quotas hold*:

- *rate*: of the requests that a broker has served within 11 s, with the same quota all the time, the bytes
  are at most the rate times 12 windows plus that time, and one request more for each connection. Records are
  returned within 12 windows only. Accepted mutations are at most the bucket (11 windows), the rate times that
  time, and one request more.
- *throttle time*: a Produce beyond 12 windows has one; so long the broker serves no other request of the
  connection (KIP-219). Without a quota, or far below it, there is none, nor THROTTLING_QUOTA_EXCEEDED.
- *known*: a broker has a stored quota when it begins to serve, and learns of a change within `LEARNED_S` once
  the cluster is whole. Quotas that were acknowledged are stored.
- *liveness*: in a whole cluster each broker throttles, and after the removal it does not. A client with a
  quota that heeds throttle times delivers everything.

Not promised: the rate of a client across brokers, restarts of a broker, steps of its wall clock, changes of
the quota and new connections, each of which has one request for free. After a step backwards mutations may be
rejected for as long, even without a quota, as in Kafka. Not simulated: request_percentage, since nothing
takes processor time here.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ottla.client import AdminClient, Producer
from ottla.client.admin import NewTopic
from ottla.client.admin_types import QuotaEntity
from ottla.client.errors import ClientError
from ottla.metadata import znodes
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import Record, build_batch
from ottla.quotas.broker import CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE, PRODUCER_BYTE_RATE
from ottla.simulation.cluster import Cluster, Machine, Violation
from ottla.simulation.workloads.clients import Clients, retrieve
from ottla.simulation.workloads.raw_connection import ConnectionEnded, RawConnection

USER: Final = "ANONYMOUS"
WINDOWS: Final = 11
WINDOW_S: Final = 1.0
LEARNED_S: Final = 30.0
LOOK_S: Final = 0.05
"""Virtual time between two looks at the quotas that brokers know."""
END_PHASE_S: Final = 4.0
"""So long clients run with a quota, and without one, in the whole cluster."""
TIMEOUT_S: Final = 8.0
VALUE_BYTES: Final = 1_500
FETCH_BYTES: Final = 4_000
BYTE_RATES: Final = (500.0, 2_000.0, 6_000.0)
MUTATION_RATES: Final = (0.5, 1.0)
MUCH: Final = 1e7
"""A quota that no client comes near."""


class _Kind(NamedTuple):
    """A quota, and the client that is measured by it."""

    key: str
    client_id: str
    rates: tuple[float, ...]


class _State(NamedTuple):
    """What decides how a broker throttles a client; a change of it begins a new measurement."""

    starts: int
    limit: float | None
    wall_offset_ms: int
    changes: int


class _Served(NamedTuple):
    """A request that a broker has served between two times."""

    sent_s: float
    received_s: float
    amount: float
    connection: int


@dataclass
class _Flow:
    """One client at one broker."""

    kind: _Kind
    broker: int
    state: _State | None = None
    served: deque[_Served] = field(default_factory=deque)
    """Within the last 11 s, in the present state."""
    muted_until_s: float = 0.0
    """Before this time the connection must not have another response."""
    throttled: int = 0
    free: int = 0
    """Responses with a throttle time and without one."""


class Quotas:
    """See the module."""

    def __init__(self, *, name: str = "quotas", rate: float = 8.0) -> None:
        """`rate` is the number of requests that a client sends to a broker in a second, unless throttled."""
        self._name = name
        self._interval_s = 1 / rate
        self._produce = _Kind(PRODUCER_BYTE_RATE, f"{name}-producer", BYTE_RATES)
        self._fetch = _Kind(CONSUMER_BYTE_RATE, f"{name}-consumer", BYTE_RATES)
        self._mutate = _Kind(CONTROLLER_MUTATION_RATE, f"{name}-mutator", MUTATION_RATES)
        self._kinds = (self._produce, self._fetch, self._mutate)
        self._flows: list[_Flow] = []
        self._uncertain: dict[_Kind, set[float | None]] = {kind: set() for kind in self._kinds}
        """Values of failed requests, which may be stored at any time."""
        self._history: dict[_Kind, list[tuple[float, float | None]]] = {kind: [] for kind in self._kinds}
        """(since when, what was stored)."""
        self._known: dict[tuple[int, str], _State] = {}
        """(broker, client-id) -> what was seen last."""
        self._rejections: list[int] = []
        """The throttle times of mutations with THROTTLING_QUOTA_EXCEEDED, in ms."""
        self._stepped_back: set[int] = set()
        """Brokers whose wall clock has gone back. Their token buckets lose what that time would have brought,
        of which there is infinitely much without a quota, as in Kafka."""
        self._topics: list[str] = []
        self._number = 0
        self._altering = True
        self._stopping = False

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients = Clients(cluster, self._name)
        self._source = cluster.random(self._name)
        self._by_user = self._source.random() < 0.5
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        (await admin.create_topics([NewTopic(self._name, 3, 3)])).raise_first()
        await admin.alter_client_quota(
            self._entity(f"{self._name}-application"), {PRODUCER_BYTE_RATE: BYTE_RATES[-1]}
        )

    def _entity(self, client_id: str) -> QuotaEntity:
        user = {"user": USER} if self._by_user else {}
        return QuotaEntity({**user, "client-id": client_id})

    async def run(self) -> None:
        self._look()
        for broker in list(self._cluster.machines):
            for kind, call in ((self._produce, self._produce_once), (self._fetch, self._fetch_once)):
                for client_id in (kind.client_id, f"{self._name}-free"):
                    self._start_flow(kind._replace(client_id=client_id), broker, call)
            self._start_flow(self._mutate, broker, self._mutate_once)
        name = f"{self._name}-application"
        self._clients.start(name, self._run_application(name))
        name = f"{self._name}-administrator"
        self._administrator = self._clients.start(name, self._alter(name))
        self._looking = asyncio.ensure_future(self._look_often())
        self._looking.add_done_callback(self._cluster.watch)

    def _start_flow(self, kind: _Kind, broker: int, call: Callable[..., Any]) -> None:
        flow = _Flow(kind, broker)
        self._flows.append(flow)
        name = f"{kind.client_id}-{kind.key.partition('_')[0]}-{broker}"
        self._clients.start(name, self._send_often(flow, call, self._cluster.random(name)))

    # --- what brokers know ---

    async def _look_often(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        """Note the stored quotas and those that the brokers know."""
        now = self._cluster.loop.now
        for kind in self._kinds:
            stored, history = self._stored(kind), self._history[kind]
            if not history or history[-1][1] != stored:
                history.append((now, stored))
            for machine in self._cluster.machines.values():
                limit = _limit(machine, kind)
                if isinstance(limit, str):
                    continue
                key = (machine.id, kind.client_id)
                before = self._known.get(key)
                if before is None or before.starts != machine.starts:
                    self._check_known(machine, kind, limit)
                found = (machine.starts, limit, machine.clock.wall_offset_ms)
                if before is not None and before.wall_offset_ms > machine.clock.wall_offset_ms:
                    self._stepped_back.add(machine.id)
                if before is None or before[:3] != found:
                    self._known[key] = _State(*found, 0 if before is None else before.changes + 1)

    def _check_known(self, machine: Machine, kind: _Kind, limit: float | None) -> None:
        """A broker that begins to serve has a quota that was stored since it was started."""
        history = self._history[kind]
        ends = [since_s for since_s, _ in history[1:]] + [float("inf")]
        stored = [
            value for (_, value), end_s in zip(history, ends, strict=True) if end_s >= machine.started_s
        ]
        if limit not in stored:
            raise Violation(
                f"quotas hold: {machine.host} begins to serve with {kind.key} {limit} of {kind.client_id}; "
                f"since it was started, {stored} was stored"
            )

    def _stored(self, kind: _Kind) -> float | None:
        """The quota in ZooKeeper."""
        if self._by_user:
            path = znodes.config_path("users", f"{USER}/clients/{kind.client_id}")
        else:
            path = znodes.config_path("clients", kind.client_id)
        node = self._cluster.ensemble.tree.find(path)
        text = None if node is None else znodes.decode_config(path, node.data).get(kind.key)
        return None if text is None else float(text)

    def _state(self, flow: _Flow) -> _State | None:
        """None while the broker does not serve."""
        machine = self._cluster.machines.get(flow.broker)
        if machine is None:
            return None
        limit = _limit(machine, flow.kind)
        if isinstance(limit, str):
            return None
        found = (machine.starts, limit, machine.clock.wall_offset_ms)
        known = self._known.get((machine.id, flow.kind.client_id))
        if known is not None and known[:3] != found:
            self._look()
            known = self._known[machine.id, flow.kind.client_id]
        return _State(*found, 0) if known is None else known  # None: a client without quota

    # --- the administrator ---

    async def _alter(self, name: str) -> None:
        source = self._cluster.random(name)
        async with AdminClient(
            bootstrap_servers=self._cluster.bootstrap, client_id=name, request_timeout_ms=5_000
        ) as admin:
            while self._altering:
                kind = source.choice(self._kinds)
                await self._set(admin, kind, source.choice((*kind.rates, *kind.rates, None, MUCH)))
                await asyncio.sleep(1 + 5 * source.random())

    async def _set(self, admin: AdminClient, kind: _Kind, value: float | None) -> bool:
        """Set or remove a quota; returns whether that is acknowledged."""
        entity = self._entity(kind.client_id)
        try:
            await admin.alter_client_quota(entity, {kind.key: value})
        except ClientError as problem:
            self._uncertain[kind].add(value)
            self._cluster.note(self._name, f"{kind.key} {value} was not set: {problem!r}")
            return False
        stored = self._stored(kind)
        if stored != value and stored not in self._uncertain[kind]:
            raise Violation(
                f"quotas hold: {kind.key} {value} of {entity} was acknowledged, and {stored} is stored"
            )
        self._cluster.note(self._name, f"{kind.key} of {kind.client_id} is {value}")
        return True

    # --- clients that do not heed throttle times ---

    async def _send_often(self, flow: _Flow, call: Callable[..., Any], source: random.Random) -> None:
        connection: RawConnection | None = None
        connections = 0
        while not self._stopping:
            await self._cluster.think(source, self._interval_s)
            machine = self._cluster.machines.get(flow.broker)
            if machine is None:
                continue
            try:
                if connection is None:
                    connections += 1
                    flow.muted_until_s = 0.0
                    connection = await RawConnection.open(machine.host, TIMEOUT_S, flow.kind.client_id)
                await call(flow, connection, connections, source)
            except ConnectionEnded:
                if connection is not None:
                    connection.close(abort=source.random() < 0.5)
                connection = None
        if connection is not None:
            connection.close()

    async def _call(
        self, flow: _Flow, connection: RawConnection, request: Any, version: int
    ) -> tuple[Any, float, bool]:
        """Returns the response, when its request was sent, and whether the state of the flow is one that can
        be measured. Raises ConnectionEnded."""
        before, sent_s = self._state(flow), self._cluster.loop.now
        response = await connection.call(request, version)
        now, state = self._cluster.loop.now, self._state(flow)
        where = f"{type(request).__name__} of {flow.kind.client_id} to broker {flow.broker}"
        if now < flow.muted_until_s - 0.001:
            raise Violation(
                f"quotas hold: KIP-219: {where} has a response {flow.muted_until_s - now:.3f} s before the "
                "end of the throttle time of the last one"
            )
        wait_ms = response.throttle_time_ms
        flow.muted_until_s = sent_s + wait_ms / 1000
        if before is None or before != state:
            flow.state = None
            return response, sent_s, False
        if flow.state != state:
            flow.state = state
            flow.served.clear()
        if wait_ms:
            flow.throttled += 1
        else:
            flow.free += 1
        may_lack_tokens = flow.kind is self._mutate and flow.broker in self._stepped_back
        if wait_ms and (state.limit is None or state.limit >= MUCH) and not may_lack_tokens:
            raise Violation(
                f"quotas hold: {where} is throttled for {wait_ms} ms; its {flow.kind.key} is {state.limit}"
            )
        return response, sent_s, True

    def _measure(
        self, flow: _Flow, sent_s: float, amount: float, connection: int
    ) -> tuple[float, float, int]:
        """Add a served request; returns the sum within 11 windows, their time, and how many connections."""
        now = self._cluster.loop.now
        served = flow.served
        served.append(_Served(sent_s, now, amount, connection))
        while now - served[0].sent_s > WINDOWS * WINDOW_S - 0.1:
            served.popleft()
            if not served:
                return 0.0, 0.0, 0
        total = sum(each.amount for each in served)
        return total, now - served[0].sent_s, len({each.connection for each in served})

    async def _produce_once(
        self, flow: _Flow, connection: RawConnection, number: int, source: random.Random
    ) -> None:
        batch = build_batch([Record(0, 1_700_000_000_000, None, b"x" * VALUE_BYTES)])
        data = m.ProduceRequest.PartitionProduceData(index=source.randrange(3), records=batch)
        topic = m.ProduceRequest.TopicProduceData(name=self._name, partition_data=[data])
        request = m.ProduceRequest(acks=source.choice((-1, 1)), timeout_ms=3_000, topic_data=[topic])
        response, sent_s, counts = await self._call(flow, connection, request, 7)
        if not counts:
            return
        total, span_s, connections = self._measure(flow, sent_s, len(batch), number)
        assert flow.state is not None
        limit = flow.state.limit
        if limit is None:
            return
        text = (
            f"broker {flow.broker} served {total:.0f} bytes of {flow.kind.client_id} in {span_s:.1f} s, over "
            f"{connections} connections, with {flow.kind.key} {limit}"
        )
        windows_s = (WINDOWS + 1) * WINDOW_S
        if total > limit * (windows_s + span_s) + connections * (len(batch) + 500):
            raise Violation(f"quotas hold: {text}")
        if total > limit * (windows_s + 0.1) and not response.throttle_time_ms:
            raise Violation(f"quotas hold: {text}, and the last one is not throttled")

    async def _fetch_once(
        self, flow: _Flow, connection: RawConnection, number: int, source: random.Random
    ) -> None:
        row = m.FetchRequest.FetchPartition(
            partition=source.randrange(3), fetch_offset=0, partition_max_bytes=FETCH_BYTES
        )
        topic = m.FetchRequest.FetchTopic(topic=self._name, partitions=[row])
        request = m.FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=[topic])
        response, sent_s, counts = await self._call(flow, connection, request, 11)
        if not counts:
            return
        size = sum(len(each.records or b"") for found in response.responses for each in found.partitions)
        if size and response.throttle_time_ms:
            raise Violation(
                f"quotas hold: a throttled Fetch of {flow.kind.client_id} from broker {flow.broker} has "
                f"{size} bytes of records"
            )
        total, span_s, _ = self._measure(flow, sent_s, size, number)
        assert flow.state is not None
        limit = flow.state.limit
        if size and limit is not None and total > limit * (WINDOWS + 1) * WINDOW_S:
            raise Violation(
                f"quotas hold: broker {flow.broker} returned {total:.0f} bytes to {flow.kind.client_id} in "
                f"{span_s:.1f} s, with {flow.kind.key} {limit}"
            )

    async def _mutate_once(
        self, flow: _Flow, connection: RawConnection, number: int, source: random.Random
    ) -> None:
        """Create a topic or delete one."""
        await asyncio.sleep(0.2)
        if self._topics and source.random() < 0.5:
            partitions, name = 1, self._topics.pop(0)
            state = m.DeleteTopicsRequest.DeleteTopicState(name=name)
            delete = m.DeleteTopicsRequest(topics=[state], timeout_ms=3_000)
            response, sent_s, counts = await self._call(flow, connection, delete, 6)
            code = response.responses[0].error_code
            if code:
                self._topics.append(name)
        else:
            self._number += 1
            partitions, name = source.choice((1, 2)), f"{self._name}-mutation-{self._number}"
            wanted = m.CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=3
            )
            create = m.CreateTopicsRequest(topics=[wanted], timeout_ms=3_000)
            response, sent_s, counts = await self._call(flow, connection, create, 7)
            code = response.topics[0].error_code
            if not code:
                self._topics.append(name)
        if not counts:
            return
        assert flow.state is not None
        limit = flow.state.limit
        text = f"of {flow.kind.client_id} by broker {flow.broker}, with {flow.kind.key} {limit}"
        if code == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            is_free = limit is None or limit >= MUCH
            self._rejections.append(response.throttle_time_ms)
            if is_free and flow.broker not in self._stepped_back:
                raise Violation(
                    f"quotas hold: a mutation {text} is rejected for {response.throttle_time_ms} ms"
                )
        elif not code:
            total, span_s, _ = self._measure(flow, sent_s, partitions, number)
            if limit is not None and total > limit * (WINDOWS * WINDOW_S + span_s) + 2:
                raise Violation(f"quotas hold: {total:.0f} mutations were accepted in {span_s:.1f} s {text}")

    # --- an application that heeds them ---

    async def _run_application(self, name: str) -> None:
        source = self._cluster.random(name)
        while not self._stopping:
            async with Producer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=name,
                request_timeout_ms=5_000,
                linger_ms=source.choice((0, 50)),
            ) as producer:
                pending: set[asyncio.Future[Any]] = set()
                for _ in range(source.randint(50, 500)):
                    if self._stopping:
                        break
                    try:
                        delivery = await producer.send(self._name, b"x" * 800, partition=source.randrange(3))
                        delivery.add_done_callback(retrieve)
                        pending.add(delivery)
                        delivery.add_done_callback(pending.discard)
                    except ClientError:
                        await asyncio.sleep(0.5)
                    await asyncio.sleep(0.1 * source.random())
                if pending:
                    await asyncio.wait(pending)

    # --- the end ---

    async def finish(self) -> None:
        self._altering = False
        await self._clients.wait(self._administrator)
        await self._set_all("throttled", lambda kind: kind.rates[0])
        await self._set_all("free", lambda kind: None)
        self._stopping = True
        await self._clients.wait()
        self._looking.cancel()
        # What remains of the time when the response is sent: nothing, if it is late.
        if len(self._rejections) >= 5 and not any(self._rejections):
            raise Violation(
                "quotas hold: each rejected mutation may be repeated at once, by its throttle time"
            )
        throttled = sum(flow.throttled for flow in self._flows)
        free = sum(flow.free for flow in self._flows)
        self._cluster.note("simulation", f"{self._name}: {throttled} responses throttled, {free} not")

    async def _set_all(self, expected: str, value_of: Callable[[_Kind], float | None]) -> None:
        """Set all quotas in the whole cluster, and check what the brokers do."""

        async def set_all(admin: AdminClient) -> None:
            for kind in self._kinds:
                while not await self._set(admin, kind, value_of(kind)):
                    await asyncio.sleep(0.5)

        await self._cluster.admin(set_all)
        await self._until_known(value_of)
        limited = [
            flow
            for flow in self._flows
            if flow.kind in (self._produce, self._fetch) and flow.broker in self._cluster.machines
        ]
        before = {id(flow): getattr(flow, expected) for flow in limited}
        deadline_s = self._cluster.loop.now + LEARNED_S
        await asyncio.sleep(END_PHASE_S)
        while lacking := [flow for flow in limited if getattr(flow, expected) == before[id(flow)]]:
            self._clients.check()
            if self._cluster.loop.now > deadline_s:
                kind = lacking[0].kind
                raise Violation(
                    f"liveness: {kind.client_id} has no response of broker {lacking[0].broker} that is "
                    f"{expected}, with {kind.key} {value_of(kind)}"
                )
            await asyncio.sleep(0.5)

    async def _until_known(self, value_of: Callable[[_Kind], float | None]) -> None:
        deadline_s = self._cluster.loop.now + LEARNED_S
        while late := [
            (machine.host, kind.key, _limit(machine, kind))
            for machine in self._cluster.machines.values()
            for kind in self._kinds
            if _limit(machine, kind) != value_of(kind)
        ]:
            if self._cluster.loop.now > deadline_s:
                raise Violation(f"quotas hold: {LEARNED_S:.0f} s after the change brokers still have {late}")
            await asyncio.sleep(0.2)


def _limit(machine: Machine, kind: _Kind) -> float | str | None:
    """The limit that a broker knows for a client; why it knows none that counts."""
    replication = getattr(machine.broker, "replication", None) if machine.is_serving else None
    if replication is None:
        return "does not serve"
    quotas = replication.quotas
    sensors = {
        PRODUCER_BYTE_RATE: quotas.produce,
        CONSUMER_BYTE_RATE: quotas.fetch,
        CONTROLLER_MUTATION_RATE: quotas.mutations,
    }
    limit: float | None = sensors[kind.key].limit_of(USER, kind.client_id)
    return limit
