"""A cluster in memory behind the calls of the admin client that the console makes.

cluster = FakeCluster(topics=50, groups=5)
cluster.fail["describe_log_dirs"] = errors.ClusterAuthorizationFailedError()
with cluster.console() as browser:      # Starlette's test client over the whole application
    browser.get("/c/test/topics")
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from starlette.testclient import TestClient
from starlette.types import ASGIApp

from ottla.client import errors
from ottla.client.admin import AdminClient
from ottla.client.admin_types import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    DelegationToken,
    GroupDescription,
    GroupListing,
    GroupMember,
    ListedOffset,
    LogDirDescription,
    Node,
    OffsetToCommit,
    PartitionDescription,
    ProducerState,
    QuotaEntity,
    Reassignment,
    ReplicaInfo,
    Results,
    TopicDescription,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)
from ottla.security import https
from ottla.security.acls import AclBinding, AclFilter
from ottla.security.jaas import parse
from ottla_console.app import Console
from ottla_console.cluster.identity_provider import Fetch
from ottla_console.registry import PAGES
from ottla_console.settings import (
    BrokerClusterName,
    Cluster,
    Mask,
    OpenIdClient,
    Registry,
    Settings,
    cluster_of,
)
from ottla_console.web.page import Page
from tests.worlds.console_kubernetes import FakeKubernetes
from tests.worlds.console_logs import FakeLogs

NODES = (Node(0, "broker-0", 9092, "a"), Node(1, "broker-1", 9092, "b"), Node(2, "broker-2", 9092, "c"))


class FakeCluster:
    """Three brokers, `topics` topics of three partitions, `groups` groups that each read two of them."""

    def __init__(self, topics: int = 3, groups: int = 2, names: Mapping[str, str] | None = None) -> None:
        self.brokers = NODES
        self.topics = {f"topic-{i:05d}": self.topic(f"topic-{i:05d}") for i in range(topics)}
        self.ends = {
            TopicPartition(name, p.partition): 1000 for name, t in self.topics.items() for p in t.partitions
        }
        listed = list(self.topics)
        self.groups = [f"group-{i:04d}" for i in range(groups)]
        self.committed = {
            group: {
                TopicPartition(listed[(i + step) % len(listed)], p): 990 - i % 7
                for step in range(2)
                for p in range(3)
            }
            for i, group in enumerate(self.groups)
            if listed
        }
        self.starts: dict[TopicPartition, int] = {}
        """Log start offsets; 0 for others."""
        self.partition_counts: dict[str, int] = {}
        """That were requested."""
        self.config_changes: list[Any] = []
        self.idle: set[str] = set()
        """Groups without members."""
        self.acls: list[AclBinding] = []
        self.credentials: dict[str, dict[str, int]] = {}
        """Iterations by user and mechanism."""
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.masks: tuple[Mask, ...] = ()
        self.registry: Registry | None = None
        self.kubernetes: FakeKubernetes | None = None
        self.up: Path | None = None
        """With one, the cluster is the BrokerCluster kafka/demo."""
        self.pipelines: tuple[str, ...] = ()
        """URLs of status ports."""
        self.logs = FakeLogs()
        self.moves = {TopicPartition("topic-00001", 0): Reassignment((0, 1, 2), (2,), (1,))}
        began = TransactionDescription(
            NODES[0], "Ongoing", 4000, 1, 60_000, 5_000, (TopicPartition("topic-00001", 0),)
        )
        self.transactions = {"payments-1": began}
        self.held: dict[TopicPartition, int] = {}
        """The last stable offsets that are behind the high watermark."""
        self.passwords: dict[str, str] = {}
        """Of users; with any, the cluster needs a log-in."""
        self.tokens: dict[str, DelegationToken] = {}
        """Delegation tokens by id; they are accepted as the password of their id."""
        self.token_ms_max = 10**12
        """The lifetime that the brokers allow."""
        self.late_logins = 0
        """So many log-ins by a token are refused, as by brokers that have not heard of it."""
        self.security: dict[str, str] = {}
        """Properties of the console for this cluster, in place of those of PLAIN."""
        self.login: str | None = None
        self.oidc: OpenIdClient | None = None
        self.bearers: list[str] = []
        """Access tokens that clients have presented."""
        self.refuses_bearers = False
        self.fail: dict[str, Exception] = {}
        """The exception that a call raises, by its name."""
        self.clients = 0
        """Open clients."""
        self.calls: list[str] = []

    @staticmethod
    def topic(name: str, *, isr: tuple[int, ...] = (0, 1, 2), leader: int = 0) -> TopicDescription:
        partitions = tuple(PartitionDescription(p, leader, 1, (0, 1, 2), isr) for p in range(3))
        return TopicDescription(name, UUID(int=1), name.startswith("__"), partitions)

    def application(
        self,
        pages: tuple[Page, ...] = PAGES,
        *,
        clock: list[float] | None = None,
        fetch: Fetch = https.request,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        **settings: Any,
    ) -> Console:
        """The application over this cluster, named `test`. `clock`: its first element is the monotonic time,
        if given. `fetch`: HTTP to an OpenID provider."""
        times: dict[str, Any] = {} if clock is None else {"monotonic_s": lambda: clock[0]}
        return Console(
            Settings((self.settings(),), **settings),
            pages,
            connect=lambda properties: self.client(properties),
            open_logs=lambda properties: self.logs,
            fetch=fetch,
            now_ms=now_ms,
            open_kubernetes=self._open_kubernetes,
            **times,
        )

    @contextmanager
    def console(
        self,
        pages: tuple[Page, ...] = PAGES,
        *,
        clock: list[float] | None = None,
        around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
        fetch: Fetch = https.request,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        **settings: Any,
    ) -> Iterator[TestClient]:
        """A client of the application in memory. `around`: middleware."""
        console = self.application(pages, clock=clock, fetch=fetch, now_ms=now_ms, **settings)
        scheme = "https" if console.settings.tls else "http"
        app = around(console.app)
        with TestClient(app, base_url=f"{scheme}://127.0.0.1", follow_redirects=False) as browser:
            browser.console = console  # type: ignore[attr-defined]
            yield browser

    def _open_kubernetes(self) -> FakeKubernetes:
        assert self.kubernetes is not None
        return self.kubernetes

    def settings(self) -> Cluster:
        plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"} if self.passwords else {}
        return replace(
            cluster_of("test", "broker-0:9092", self.security or plain, self.login, self.oidc),
            masks=self.masks,
            registry=self.registry,
            pipelines=self.pipelines,
            kubernetes=BrokerClusterName("kafka", "demo") if self.kubernetes else None,
            up=self.up,
        )

    def client(self, properties: Mapping[str, object]) -> AdminClient:
        return cast(AdminClient, FakeAdmin(self, properties))


class FakeAdmin:
    """The calls of one client."""

    def __init__(self, cluster: FakeCluster, properties: Mapping[str, object]) -> None:
        self._cluster = cluster
        self._properties = properties
        cluster.clients += 1

    async def __aenter__(self) -> FakeAdmin:
        return self

    async def close(self) -> None:
        self._cluster.clients -= 1

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _called(self, name: str) -> FakeCluster:
        cluster = self._cluster
        cluster.calls.append(name)
        if cluster.passwords:
            jaas = str(self._properties.get("sasl.jaas.config", ""))
            known = (
                f'username="{user}" password="{word}"' in jaas for user, word in cluster.passwords.items()
            )
            if not any(known) and not self._by_token(jaas):
                raise errors.SaslAuthenticationFailedError(
                    "Authentication failed: Invalid username or password"
                )
        if name in cluster.fail:
            raise cluster.fail[name]
        return cluster

    def _by_token(self, jaas: str) -> bool:
        cluster = self._cluster
        login = parse(jaas).options if jaas else {}
        token = cluster.tokens.get(login.get("username", ""))
        if token is None or login.get("tokenauth") != "true":
            return False
        cluster.late_logins -= 1
        return cluster.late_logins < 0 and b64decode(login["password"]) == token.hmac

    async def create_delegation_token(
        self, *, owner: str, renewers: list[str], max_lifetime_ms: int
    ) -> DelegationToken:
        cluster = self._called("create_delegation_token")
        tokens = cluster.tokens
        id_ = f"token-{len(tokens)}"
        now_ms = time.time_ns() // 1_000_000
        end_ms = now_ms + min(max_lifetime_ms, cluster.token_ms_max)
        hmac = f"hmac of {id_}".encode()
        tokens[id_] = DelegationToken(id_, owner, "User:console", (*renewers,), now_ms, end_ms, end_ms, hmac)
        return tokens[id_]

    async def expire_delegation_token(self, hmac: bytes) -> int:
        cluster = self._called("expire_delegation_token")
        cluster.tokens = {id_: each for id_, each in cluster.tokens.items() if each.hmac != hmac}
        return 0

    async def describe_cluster(self) -> ClusterDescription:
        provider = self._properties.get("sasl.oauth.token.provider")
        if provider is not None:
            self._cluster.bearers.append(await provider())
            if self._cluster.refuses_bearers:
                raise errors.SaslAuthenticationFailedError('{"status":"invalid_token"}')
        return ClusterDescription("id-of-it", 1, self._called("describe_cluster").brokers)

    async def describe_topics(self, names: Any = None) -> Results[str, TopicDescription]:
        topics = self._called("describe_topics").topics
        missing = errors.UnknownTopicOrPartitionError()
        return Results({name: topics.get(name, missing) for name in (topics if names is None else names)})

    async def describe_log_dirs(self, brokers: Any = None) -> Results[int, tuple[LogDirDescription, ...]]:
        cluster = self._called("describe_log_dirs")
        wanted = [node.id for node in cluster.brokers] if brokers is None else brokers
        replicas = {tp: ReplicaInfo(4096, 0, False) for tp in cluster.ends}
        return Results({b: (LogDirDescription("/data", None, 10**12, 6 * 10**11, replicas),) for b in wanted})

    async def end_offsets(self, partitions: Any) -> dict[TopicPartition, int]:
        ends = self._called("end_offsets").ends
        return {tp: ends[tp] for each in partitions if (tp := TopicPartition(*each)) in ends}

    async def list_offsets(
        self, specs: Any, *, isolation_level: str = "read_uncommitted"
    ) -> Results[TopicPartition, ListedOffset]:
        """Of LATEST; `held` has last stable offsets."""
        cluster = self._called("list_offsets")
        stable = cluster.held if isolation_level == "read_committed" else {}
        return Results(
            {
                tp: ListedOffset(stable.get(tp, cluster.ends[tp]), -1, 0)
                for each in specs
                if (tp := TopicPartition(*each)) in cluster.ends
            }
        )

    async def start_offsets(self, partitions: Any) -> dict[TopicPartition, int]:
        starts = self._called("start_offsets").starts
        return {tp: starts.get(tp, 0) for each in partitions for tp in [TopicPartition(*each)]}

    async def list_groups(self) -> Results[int, tuple[GroupListing, ...]]:
        cluster = self._called("list_groups")
        return Results({0: tuple(GroupListing(g, "consumer", "Stable", "classic") for g in cluster.groups)})

    async def list_group_offsets(self, groups: Any) -> Results[str, dict[TopicPartition, OffsetToCommit]]:
        committed = self._called("list_group_offsets").committed
        return Results({g: {tp: OffsetToCommit(o) for tp, o in committed.get(g, {}).items()} for g in groups})

    async def describe_group(self, group: str) -> GroupDescription:
        cluster = self._called("describe_group")
        if group not in cluster.groups:
            return GroupDescription(group, "Dead", (), NODES[0])
        if group in cluster.idle:
            return GroupDescription(group, "Empty", (), NODES[0], "", "consumer")
        partitions = tuple(cluster.committed.get(group, {}))
        member = GroupMember("member-1", None, "client-1", "10.0.0.1", partitions)
        return GroupDescription(group, "Stable", (member,), NODES[0], "range", "consumer")

    async def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        return dict(self._called("group_offsets").committed.get(group, {}))

    async def describe_configs(
        self, resources: list[ConfigResource], **_: Any
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        self._called("describe_configs")
        entry = ConfigEntry("604800000", 5, documentation="How long records are kept.")
        return Results({key: {"retention.ms": entry} for key in resources})

    async def describe_acls(self, wanted: Any = None) -> list[AclBinding]:
        return self._called("describe_acls").acls

    # --- changes of groups ---

    async def offsets_for_time(self, partitions: Any, timestamp_ms: int) -> dict[TopicPartition, int]:
        """Record N of each partition has the timestamp N."""
        ends = self._called("offsets_for_time").ends
        return {tp: timestamp_ms for each in partitions if timestamp_ms < ends[tp := TopicPartition(*each)]}

    async def alter_group_offsets(self, group: str, offsets: Any) -> Results[TopicPartition, None]:
        cluster = self._called("alter_group_offsets")
        cluster.committed.setdefault(group, {}).update(offsets)
        return Results(dict.fromkeys(offsets))

    async def delete_group_offsets(self, group: str, partitions: Any) -> Results[TopicPartition, None]:
        cluster = self._called("delete_group_offsets")
        for each in partitions:
            del cluster.committed[group][each]
        return Results(dict.fromkeys(partitions))

    async def delete_group(self, group: str) -> None:
        cluster = self._called("delete_group")
        cluster.groups.remove(group)
        cluster.committed.pop(group, None)

    # --- security ---

    async def create_acls(self, bindings: list[AclBinding]) -> Results[AclBinding, None]:
        acls = self._called("create_acls").acls
        acls += [each for each in bindings if each not in acls]
        return Results(dict.fromkeys(bindings))

    async def delete_acls(self, filters: list[AclFilter]) -> Results[AclFilter, Results[AclBinding, None]]:
        cluster = self._called("delete_acls")
        found = {each: [acl for acl in cluster.acls if each.matches(acl)] for each in filters}
        cluster.acls = [acl for acl in cluster.acls if not any(each.matches(acl) for each in filters)]
        return Results({each: Results(dict.fromkeys(acls)) for each, acls in found.items()})

    async def describe_user_scram_credentials(self) -> Results[str, dict[str, int]]:
        return Results(self._called("describe_user_scram_credentials").credentials)

    async def set_scram_credential(self, user: str, mechanism: str, password: str, iterations: int) -> None:
        cluster = self._called("set_scram_credential")
        cluster.credentials.setdefault(user, {})[mechanism] = iterations

    async def delete_scram_credentials(self, user: str, mechanisms: list[str]) -> None:
        cluster = self._called("delete_scram_credentials")
        for mechanism in mechanisms:
            del cluster.credentials[user][mechanism]

    async def describe_client_quotas(self) -> dict[QuotaEntity, dict[str, float]]:
        return self._called("describe_client_quotas").quotas

    async def alter_client_quota(self, entity: QuotaEntity, values: Mapping[str, float | None]) -> None:
        quotas = self._called("alter_client_quota").quotas
        changed = {**quotas.get(entity, {}), **values}
        quotas[entity] = {key: value for key, value in changed.items() if value is not None}

    async def list_partition_reassignments(self) -> dict[TopicPartition, Reassignment]:
        return self._called("list_partition_reassignments").moves

    async def list_transactions(self) -> Results[int, tuple[TransactionListing, ...]]:
        transactions = self._called("list_transactions").transactions
        return Results(
            {
                0: tuple(
                    TransactionListing(id_, each.producer_id, each.state)
                    for id_, each in transactions.items()
                )
            }
        )

    async def describe_transactions(self, ids: Any) -> Results[str, TransactionDescription]:
        known = self._called("describe_transactions").transactions
        missing = errors.TransactionalIdNotFoundError()
        return Results({id_: known.get(id_, missing) for id_ in ids})

    async def describe_producers(self, partitions: Any) -> Results[TopicPartition, tuple[ProducerState, ...]]:
        self._called("describe_producers")
        state = ProducerState(4000, 1, 17, 1_000, 0, 12)
        return Results({TopicPartition(*each): (state,) for each in partitions})

    # --- changes of topics ---

    async def create_topics(self, topics: Any, *, validate_only: bool = False) -> Results[str, CreatedTopic]:
        cluster = self._called("create_topics")
        if not validate_only:
            cluster.topics |= {topic.name: cluster.topic(topic.name) for topic in topics}
        return Results({topic.name: CreatedTopic(UUID(int=1), 3, 3, None) for topic in topics})

    async def delete_topic(self, name: str) -> None:
        del self._called("delete_topic").topics[name]

    async def create_partitions(self, counts: Mapping[str, int]) -> Results[str, None]:
        self._called("create_partitions").partition_counts |= counts
        return Results(dict.fromkeys(counts))

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]:
        self._called("delete_records").starts |= before
        return Results(before)

    async def incremental_alter_configs(self, changes: Any) -> Results[ConfigResource, None]:
        self._called("incremental_alter_configs").config_changes += [*changes.items()]
        return Results(dict.fromkeys(changes))
