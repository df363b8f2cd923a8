"""Kafka, KafkaNodePool, KafkaTopic, KafkaUser, Connect's kinds and KafkaMirrorMaker2 of Strimzi as Ottla's.

Fields that Ottla's models have under the same name are taken as they are, so that a field that a model gains
is converted without a change here. What differs has a function below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic import Field as ModelField

from ottla_operator.kubectl.strimzi.fields import LAST_APPLIED, Field, Original, fitted, fitted_items
from ottla_operator.planning.connect import client_of
from ottla_operator.resources import API_VERSION
from ottla_operator.resources.cluster import DisruptionBudget, Rack
from ottla_operator.resources.common import (
    MANAGED_ANNOTATION,
    PAUSE_ANNOTATION,
    FreeForm,
    Model,
    Storage,
    config_text,
)
from ottla_operator.resources.connect import (
    AutoRestart,
    ClientAuthentication,
    ClientTls,
    ConnectPlugin,
    reserved_setting,
)
from ottla_operator.resources.listeners import Listener
from ottla_operator.resources.loading import parse_resource
from ottla_operator.resources.pods import PodMetadata, PodSpec, Variable, VariablesSource, VolumeMount
from ottla_operator.resources.quota import Limits
from ottla_operator.resources.security import Authorization, CertificateAuthority
from ottla_operator.resources.settings import (
    DEFAULT_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    broker_settings_problems,
    release_of,
    topic_setting_problem,
    version_problem,
)
from ottla_operator.resources.storage import StorageVolume
from ottla_operator.resources.user import Acl, Authentication

STRIMZI: Final = "kafka.strimzi.io"
STRIMZI_CLUSTER: Final = "strimzi.io/cluster"
_ANNOTATIONS: Final = {
    "strimzi.io/pause-reconciliation": PAUSE_ANNOTATION,
    "strimzi.io/managed": MANAGED_ANNOTATION,
}
_ASSUMED_BROKERS: Final = 3

_NO_JVM: Final = "brokers have no JVM"
_NO_KRAFT: Final = "brokers use ZooKeeper, which the operator runs"
_ONE_OPERATOR: Final = "the operator itself does this"
_REASONS: Final = {
    "image": "the image is Apache Kafka's; brokers run the operator's image",
    "jvmOptions": _NO_JVM,
    "jmxOptions": _NO_JVM,
    "metadataVersion": _NO_KRAFT,
    "metricsConfig": "every broker has /metrics for Prometheus without configuration",
    "logging": "the form of log4j does not apply; `ottla configs` sets levels of loggers",
    "livenessProbe": "the operator sets the probes",
    "readinessProbe": "the operator sets the probes",
    "brokerRackInitImage": _ONE_OPERATOR,
    "tieredStorage": "there is no tiered storage",
}
_CONTAINER_PARTS: Final[Mapping[str, type[BaseModel]]] = {
    "env": Variable,
    "envFrom": VariablesSource,
    "volumeMounts": VolumeMount,
}
_RATE: Final = re.compile(r"^([0-9]+)([KMG]i?)?B/s$")


@dataclass(slots=True)
class Conversion:
    """The result: Ottla's resources, and what is to be known of each resource of Strimzi."""

    results: list[dict[str, Any]] = field(default_factory=list)
    originals: list[Original] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What must be edited before a result is valid, and what could not be read."""


def convert(contents: Iterable[object]) -> Conversion:
    """Convert the resources in YAML documents, of which one can be a list, as kubectl prints it."""
    done = Conversion()
    originals = done.originals
    for content in contents:
        for each in _listed(content):
            if isinstance(each, Mapping) and str(each.get("apiVersion", "")).partition("/")[0] == STRIMZI:
                originals.append(Original(each))
            else:
                name = f"{each.get('kind')}" if isinstance(each, Mapping) else f"{each!r:.60}"
                done.problems.append(f"{name}: is no resource of Strimzi, and is left out")
    pools: dict[str, list[Original]] = {}
    for original in originals:
        if original.kind == "KafkaNodePool":
            pools.setdefault(_cluster_of(original), []).append(original)
    for original in originals:
        if original.kind == "Kafka":
            done.results += _cluster(original, pools.pop(original.name, []))
    for orphans in pools.values():
        for pool in orphans:
            pool.field("spec").leave("the Kafka resource of its cluster is not in the input")
    for original in originals:
        if original.kind in _OTHERS:
            done.results += _OTHERS[original.kind](original)
        elif original.kind not in ("Kafka", "KafkaNodePool"):
            original.field("spec").leave(f"there is no equivalent of the kind {original.kind}")
    for result in done.results:
        _, problems = parse_resource(result["kind"], result["metadata"], result["spec"])
        done.problems += (f"{result['kind']}/{result['metadata']['name']}: {each}" for each in problems)
    return done


def _listed(content: object) -> Iterator[object]:
    if isinstance(content, Mapping) and str(content.get("kind", "")).endswith("List"):
        yield from content.get("items") or ()
    elif content is not None:
        yield content


def _cluster_of(original: Original) -> str:
    return str((original.metadata.get("labels") or {}).get(STRIMZI_CLUSTER, ""))


def _resource(kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _metadata(original: Original) -> dict[str, Any]:
    """Name, namespace, labels and annotations, without those of Strimzi."""
    source = original.field("metadata")
    result = {name: source[name].take() for name in ("name", "namespace") if source[name]}
    labels = {
        name: each.take() for name, each in source["labels"].fields() if not name.startswith("strimzi.io/")
    }
    annotations = {}
    for name, each in source["annotations"].fields():
        if name in _ANNOTATIONS:
            annotations[_ANNOTATIONS[name]] = each.take()
        elif not name.startswith("strimzi.io/") and name != LAST_APPLIED:
            annotations[name] = each.take()
    for name, given in (("labels", labels), ("annotations", annotations)):
        if given:
            result[name] = given
        elif source[name].value == {}:
            source[name].take()
    return result


def _reference(original: Original) -> dict[str, Any]:
    label = original.field("metadata", "labels", STRIMZI_CLUSTER)
    if not label:
        original.field("spec").differs(f"clusterRef.name must be added: there is no label {STRIMZI_CLUSTER}")
    return {"name": label.take() or ""}


def _set(spec: dict[str, Any], name: str, value: Any) -> None:
    """Set a field that has something in it."""
    if value not in (None, {}, []):
        spec[name] = value


# ---- clusters


def _cluster(original: Original, pools: Sequence[Original]) -> Iterator[dict[str, Any]]:
    kafka = original.field("spec", "kafka")
    spec: dict[str, Any] = {}
    metadata = _metadata(original)
    _brokers(spec, original, pools)
    _version(spec, kafka)
    _set(spec, "listeners", [one for each in kafka["listeners"].items() if (one := _listener(each))])
    if kafka["listeners"] and "listeners" not in spec:
        kafka["listeners"].differs(
            "no listener is converted: the cluster gets the default one, 9092 without TLS and authentication"
        )
    if kafka["authorization"]["type"].value == "custom":
        kafka["authorization"].give_up("its class is Java's: write it in Python (docs/guides/security.md)")
    else:
        _set(spec, "authorization", fitted(kafka["authorization"], Authorization))
    if kafka["authorization"] and "authorization" not in spec:
        kafka["authorization"].differs("without it, everybody may do everything")
    for name in ("clusterCa", "clientsCa"):
        _set(spec, name, fitted(original.field("spec", name), CertificateAuthority))
    if kafka["rack"]["type"].value == "topology-label":
        kafka["rack"]["type"].take()
    _set(spec, "rack", fitted(kafka["rack"], Rack))
    _set(spec, "config", _broker_settings(kafka["config"], spec))
    _set(spec, "zookeeper", _zookeeper(original.field("spec", "zookeeper")))
    _set(spec, "rebalance", _rebalance(original.field("spec", "cruiseControl")))
    for name, reason in _REASONS.items():
        kafka[name].leave(reason)
    original.field("spec", "entityOperator").leave(_ONE_OPERATOR)
    original.field("spec", "kafkaExporter").leave("the brokers' /metrics have kafka_exporter's metrics")
    original.field("spec", "jmxTrans").leave(_NO_JVM)
    yield _resource("BrokerCluster", metadata, spec)
    yield from (_pool(pool) for pool in _pools_of_brokers(pools)[1:])
    quotas = kafka["quotas"]
    if quotas["type"].value == "kafka":
        quotas["type"].take()
        limits = fitted(quotas, Limits)
        if limits:
            yield _quota(f"{original.name}-default", metadata, original.name, "<default>", limits)
    else:
        quotas.leave("the quota plugin is Strimzi's; Quota resources have Kafka's quotas")


def _pools_of_brokers(pools: Sequence[Original]) -> list[Original]:
    """The pools without those of KRaft's controllers; the first one becomes the cluster's own."""
    return [pool for pool in pools if "broker" in (pool.field("spec", "roles").value or ())]


def _brokers(spec: dict[str, Any], original: Original, pools: Sequence[Original]) -> None:
    """Number, volumes, resources and pods of the brokers: of the first pool of brokers, or of the Kafka
    resource."""
    kafka = original.field("spec", "kafka")
    of_brokers = _pools_of_brokers(pools)
    for pool in pools:
        if pool not in of_brokers[1:]:
            pool.field("metadata").leave("the pool becomes a part of the BrokerCluster")
        if pool not in of_brokers:
            pool.field("spec").leave(_NO_KRAFT)
    source = of_brokers[0].field("spec") if of_brokers else kafka
    replicas = source["replicas"].take()
    if of_brokers:
        _take_roles(source)
        for name in ("replicas", "storage"):
            kafka[name].leave(f"the KafkaNodePool {of_brokers[0].name} has its own")
    elif replicas is None:
        kafka.differs(
            f"the input has no KafkaNodePool with its brokers: {_ASSUMED_BROKERS} brokers are assumed"
        )
    spec["replicas"] = _ASSUMED_BROKERS if replicas is None else replicas
    _set(spec, "storage", _broker_storage(source["storage"]))
    resources = source["resources"] or kafka["resources"]
    _set(spec, "resources", resources.take())
    parts = dict(kafka["template"].fields())
    if of_brokers:
        for name, part in source["template"].fields():
            if name in parts:
                parts[name].leave(f"the template of {of_brokers[0].key} replaces it")
            parts[name] = part
    _set(spec, "template", _template(parts, "kafkaContainer", "broker"))


def _take_roles(source: Field) -> None:
    for role in source["roles"].items():
        if role.value == "broker":
            role.take()
        else:
            role.leave(_NO_KRAFT)
    source["jvmOptions"].leave(_NO_JVM)


def _pool(original: Original) -> dict[str, Any]:
    """A further pool of brokers."""
    metadata, source = _metadata(original), original.field("spec")
    spec: dict[str, Any] = {"clusterRef": _reference(original), "replicas": source["replicas"].take() or 0}
    _take_roles(source)
    _set(spec, "storage", _broker_storage(source["storage"]))
    _set(spec, "resources", source["resources"].take())
    parts = dict(source["template"].fields())
    parts.pop("podDisruptionBudget", None)
    _set(spec, "template", _template(parts, "kafkaContainer", "broker"))
    return _resource("BrokerPool", metadata, spec)


def _version(spec: dict[str, Any], kafka: Field) -> None:
    kafka["version"].leave(
        f"brokers speak Kafka's protocol up to {release_of(DEFAULT_PROTOCOL_VERSION)}; their image decides"
    )
    given = kafka["config"][PROTOCOL_VERSION]
    if given:
        version = config_text(given.value)
        problem = version_problem(version)
        if problem:
            given.leave(problem)
        else:
            given.take()
            spec["version"] = version


def _listener(source: Field) -> dict[str, Any]:
    result = fitted(source, Listener)
    if result and source["authentication"] and "authentication" not in result:
        given = source["authentication"]["type"].value
        source.give_up(f"authentication {given} has no equivalent; without it the listener would be open")
        return {}
    return result


def _broker_settings(source: Field, spec: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, given in source.fields():
        if name == PROTOCOL_VERSION:
            continue
        problems, warnings = (
            broker_settings_problems({name: config_text(given.value)})
            if isinstance(given.value, str | int | float | bool)
            else ([(name, "must be a text, a number, true or false")], [])
        )
        if problems:
            given.leave(problems[0][1])
            continue
        result[name] = given.take()
        for warning in warnings:
            given.differs(warning)
    return result


def _broker_storage(source: Field) -> dict[str, Any]:
    if source["type"].value != "jbod":
        return _storage(source)
    source["type"].take()
    given = list(source["volumes"].items())
    deleted = {bool(volume["deleteClaim"].value) for volume in given}
    for volume in given:
        if len(deleted) > 1:
            volume["deleteClaim"].leave("storage.deleteClaim is of all volumes of a broker")
        elif volume["deleteClaim"]:
            volume["deleteClaim"].take()
    volumes = [volume for volume in (_storage(each, StorageVolume) for each in given) if volume]
    return {
        **({"volumes": volumes} if volumes else {}),
        **({"deleteClaim": True} if deleted == {True} else {}),
    }


def _storage(source: Field, model: type[Model] = Storage) -> dict[str, Any]:
    if source["type"].value != "persistent-claim":
        source.leave("brokers and ZooKeeper servers have persistent volumes")
        return {}
    source["type"].take()
    source["kraftMetadata"].leave(_NO_KRAFT)
    return fitted(source, model)


def _zookeeper(source: Field) -> dict[str, Any]:
    if not source:
        return {}
    managed: dict[str, Any] = {}
    for name in ("replicas", "resources"):
        _set(managed, name, source[name].take())
    _set(managed, "storage", _storage(source["storage"]))
    heap = source["jvmOptions"]["-Xmx"]
    if heap and re.fullmatch(r"[1-9][0-9]*[kKmMgG]", str(heap.value)):
        managed["heap"] = heap.take()
    _set(managed, "template", _template(dict(source["template"].fields()), "zookeeperContainer", "zookeeper"))
    for name in ("livenessProbe", "readinessProbe", "metricsConfig", "logging", "image", "config"):
        source[name].leave("the operator configures the ZooKeeper that it runs")
    return {"managed": managed} if managed else {}


def _rebalance(source: Field) -> dict[str, Any]:
    """Cruise Control's capacities and automatic rebalancing as those of the operator."""
    result: dict[str, Any] = {}
    capacity: dict[str, Any] = {}
    for name, ours in (("inboundNetwork", "networkIn"), ("outboundNetwork", "networkOut")):
        given = source["brokerCapacity"][name]
        match = _RATE.match(str(given.value))
        if match:
            given.take()
            capacity[ours] = f"{match[1]}{_unit(match[2] or '')}"
    _set(result, "capacity", capacity)
    triggers = []
    for each in source["autoRebalance"].items():
        trigger = {"add-brokers": "ScaleUp", "remove-brokers": "ScaleDown"}.get(each["mode"].value)
        if trigger:
            each["mode"].take()
            triggers.append(trigger)
    if triggers:
        result |= {"mode": "Auto", "triggers": triggers}
    source.leave("rebalancing is part of the operator, spec.rebalance")
    return result


def _unit(unit: str) -> str:
    return "k" if unit == "K" else unit


def _template(parts: Mapping[str, Field], container: str, name: str) -> dict[str, Any]:
    """Strimzi's template of pods and containers as a pod template. `container`: Strimzi's name of the main
    container, `name`: ours."""
    pod: dict[str, Any] = {}
    if "pod" in parts:
        given = parts["pod"]
        _set(pod, "metadata", fitted(given["metadata"], PodMetadata))
        _set(pod, "spec", fitted(given.without("metadata"), PodSpec))
    if container in parts:
        main = {part: fitted_items(parts[container][part], model) for part, model in _CONTAINER_PARTS.items()}
        if any(main.values()):
            filled = {part: items for part, items in main.items() if items}
            pod.setdefault("spec", {})["containers"] = [{"name": name, **filled}]
    result: dict[str, Any] = {}
    _set(result, "pod", pod)
    if name == "broker" and "podDisruptionBudget" in parts:
        _set(result, "podDisruptionBudget", fitted(parts["podDisruptionBudget"], DisruptionBudget))
    return result


# ---- topics, users, quotas


def _topic(original: Original) -> Iterator[dict[str, Any]]:
    source = original.field("spec")
    topic = source["topicName"].value or original.name
    if topic.startswith("__") or original.name.startswith("consumer-offsets---"):
        original.field("metadata").leave("the topic is an internal one, which brokers create")
        source.leave("the topic is an internal one, which brokers create")
        return
    spec: dict[str, Any] = {"clusterRef": _reference(original)}
    for name in ("topicName", "partitions", "replicas"):
        _set(spec, name, source[name].take())
    config: dict[str, Any] = {}
    for name, given in source["config"].fields():
        problem: str | None = "must be a text, a number, true or false"
        if isinstance(given.value, str | int | float | bool):
            problem = topic_setting_problem(name, config_text(given.value))
        if problem is None:
            config[name] = given.take()
        else:
            given.leave(problem)
    _set(spec, "config", config)
    yield _resource("Topic", _metadata(original), spec)


def _user(original: Original) -> Iterator[dict[str, Any]]:
    source = original.field("spec")
    metadata = _metadata(original)
    reference = _reference(original)
    spec: dict[str, Any] = {"clusterRef": reference}
    given = source["authentication"]
    external = given["type"].value == "tls-external"
    if external:
        given["type"].take()
        given["type"].differs(
            "converted to tls, which has the same principal: the operator also issues a certificate"
        )
        spec["authentication"] = {"type": "tls"}
    else:
        _set(spec, "authentication", fitted(given, Authentication))
    for name in ("validityDays", "renewalDays"):
        given[name].leave("spec.clientsCa of the BrokerCluster has it for all users")
    if given and "authentication" not in spec:
        given.differs("without it, the operator manages no credentials of the user")
    authorization = source["authorization"]
    if authorization["type"].value == "simple":
        acls = [acl for each in authorization["acls"].items() if (acl := _acl(each))]
        spec["authorization"] = {"type": authorization["type"].take(), "acls": acls}
        if authorization["acls"].value == []:
            authorization["acls"].take()
    yield _resource("User", metadata, spec)
    limits = fitted(source["quotas"], Limits)
    if limits:
        by_name = spec.get("authentication", {}).get("type") != "tls"
        principal = original.name if by_name else f"CN={original.name}"
        yield _quota(original.name, metadata, reference["name"], principal, limits)


def _acl(source: Field) -> dict[str, Any]:
    """An ACL; in v1beta2 it can have one `operation`. Without a part of it, it would allow something else."""
    one = source["operation"]
    operations = source["operations"].value or ([one.take()] if one else [])
    whole = {**source.without("operation").value, "operations": operations}
    result = fitted(Field(source.original, source.path, whole), Acl)
    if result != {name: value for name, value in whole.items() if value is not None}:
        source.give_up("an ACL is converted as a whole or not at all")
        return {}
    return result


def _quota(
    name: str, metadata: Mapping[str, Any], cluster: str, user: str, limits: Mapping[str, Any]
) -> dict[str, Any]:
    spec = {"clusterRef": {"name": cluster}, "entity": {"user": user}, "limits": dict(limits)}
    return _resource("Quota", {**metadata, "name": name}, spec)


# ---- Kafka Connect


class _WorkersPart(Model):
    """The fields of ConnectClusterSpec that have the same names."""

    replicas: int | None = None
    bootstrap_servers: str | None = None
    tls: ClientTls | None = None
    authentication: ClientAuthentication | None = None
    resources: FreeForm | None = None
    plugins: list[ConnectPlugin] | None = None


class _ConnectorPart(Model):
    """The fields of ConnectorSpec that have the same names."""

    class_name: str | None = ModelField(default=None, alias="class")
    tasks_max: int | None = None
    state: Literal["running", "paused", "stopped"] | None = None
    auto_restart: AutoRestart | None = None


_BOOTSTRAP: Final = re.compile(r"^([a-z0-9-]+)-kafka-bootstrap(\.[^,]*)?:[0-9]+$")
_WORKER_SETTINGS: Final = {
    "groupId": "group.id",
    "configStorageTopic": "config.storage.topic",
    "offsetStorageTopic": "offset.storage.topic",
    "statusStorageTopic": "status.storage.topic",
}


def _connect(original: Original) -> Iterator[dict[str, Any]]:
    """Workers of a cluster of Strimzi become those of the BrokerCluster that it becomes."""
    source = original.field("spec")
    spec = _workers(original, source)
    spec |= _workers_fields(source)
    yield _resource("ConnectCluster", _metadata(original), spec)


def _workers(original: Original, target: Field) -> dict[str, Any]:
    """How workers reach their cluster, and their settings, from the fields of `target`."""
    spec: dict[str, Any] = {}
    config = {ours: target[name].take() for name, ours in _WORKER_SETTINGS.items() if target[name]}
    for name, given in target["config"].fields():
        problem = reserved_setting(name)
        if problem or not isinstance(given.value, str | int | float | bool):
            given.leave(f"is set by the operator: {problem}" if problem else "must be a text or a number")
        else:
            config[name] = given.take()
    own = _BOOTSTRAP.match(str(target["bootstrapServers"].value))
    if own is not None:
        target["bootstrapServers"].take()
        spec["clusterRef"] = {"name": own[1]}
        target["tls"].leave("the operator knows the certificates of the cluster's listeners")
        _set(spec, "user", _user_of(target["authentication"]))
    else:
        spec |= fitted(_only(target, "bootstrapServers", "tls", "authentication"), _WorkersPart)
        if target["authentication"] and "authentication" not in spec:
            target["authentication"].differs("must be added: without it, workers cannot connect")
    _set(spec, "config", config)
    return spec


def _workers_fields(source: Field) -> dict[str, Any]:
    """The fields about the workers' pods, which KafkaConnect and KafkaMirrorMaker2 have."""
    spec = fitted(_only(source, "replicas", "resources", "plugins"), _WorkersPart)
    heap = source["jvmOptions"]["-Xmx"]
    if heap and re.fullmatch(r"[1-9][0-9]*[kKmMgG]", str(heap.value)):
        spec["heap"] = heap.take()
    template = _template(dict(source["template"].fields()), "connectContainer", "connect")
    _set(spec, "template", template)
    reason = "the image is Strimzi's; plugins come by spec.plugins, or by an image from Ottla's"
    for name in ("image", "build"):
        source[name].leave(reason)
    source["version"].leave("workers run Kafka Connect 3.9; their image decides")
    source["metricsConfig"].leave("every worker has /metrics for Prometheus without configuration")
    for name in ("logging", "livenessProbe", "readinessProbe"):
        source[name].leave("the operator sets it")
    return spec


def _only(source: Field, *names: str) -> Field:
    """The field with only these of the fields below it."""
    return Field(
        source.original, source.path, {name: each.value for name, each in source.fields() if name in names}
    )


def _user_of(authentication: Field) -> str | None:
    """The User that workers authenticate as: that of Strimzi's Secret, which has the user's name."""
    kind = authentication["type"].value
    path = "certificateAndKey" if kind == "tls" else "passwordSecret"
    name = authentication[path]["secretName"]
    if kind not in ("tls", "scram-sha-512") or not name:
        authentication.leave("it is no user of the cluster")
        return None
    for part in ("type", "username", "passwordSecret", "certificateAndKey"):
        authentication[part].leave(f"spec.user is {name.value}, and the operator knows its Secret")
    return str(name.take())


def _connector(original: Original) -> Iterator[dict[str, Any]]:
    source = original.field("spec")
    label = original.field("metadata", "labels", STRIMZI_CLUSTER)
    if not label:
        source.differs(f"connectRef.name must be added: there is no label {STRIMZI_CLUSTER}")
    spec = {"connectRef": {"name": label.take() or ""}, **_connector_parts(source)}
    yield _resource("Connector", _metadata(original), spec)


def _connector_parts(source: Field) -> dict[str, Any]:
    """What a connector of Strimzi's has in common with the spec of a Connector."""
    spec = fitted(_without(source, "config", "listOffsets", "alterOffsets"), _ConnectorPart)
    if source["pause"].value is True and "state" not in spec:
        source["pause"].take()
        spec["state"] = "paused"
    elif source["pause"].value is False:
        source["pause"].leave("state has it")
    config: dict[str, Any] = {}
    for name, given in source["config"].fields():
        if isinstance(given.value, str | int | float | bool) and name not in ("connector.class", "tasks.max"):
            config[name] = given.take()
    _set(spec, "config", config)
    source["version"].leave("a worker has one version of a plugin")
    source["listOffsets"].leave("status.offsets has them")
    source["alterOffsets"].leave("spec.alterOffsets of a Connector has the offsets itself")
    return spec


def _without(source: Field, *names: str) -> Field:
    return _only(source, *(name for name, _ in source.fields() if name not in names))


_MIRRORS: Final = {
    "sourceConnector": ("MirrorSourceConnector", "source"),
    "checkpointConnector": ("MirrorCheckpointConnector", "checkpoint"),
    "heartbeatConnector": ("MirrorHeartbeatConnector", "heartbeat"),
}
_MIRROR_CLASSES: Final = "org.apache.kafka.connect.mirror"
_MIRROR_PATTERNS: Final = {
    "topicsPattern": "topics",
    "topicsExcludePattern": "topics.exclude",
    "groupsPattern": "groups",
    "groupsExcludePattern": "groups.exclude",
}
_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
_MIRROR_GROUP: Final = "mirrormaker2-cluster"
"""Of Strimzi's workers where the resource does not name it."""
_MIRROR_NAMES: Final = {
    "group.id": "",
    "config.storage.topic": "-configs",
    "offset.storage.topic": "-offsets",
    "status.storage.topic": "-status",
}
_MIRROR_MOUNTS: Final = "/mnt"


def _mirror_maker(original: Original) -> Iterator[dict[str, Any]]:
    """Workers of the target, and a Connector for each connector of each mirror."""
    spec = original.field("spec")
    clusters = {each["alias"].value: each for each in spec["clusters"].items()}
    target = spec["target"]
    if not target:
        target = clusters.get(spec["connectCluster"].take()) or spec["clusters"][-1]
    workers = _workers(original, target) | _workers_fields(spec)
    if not spec["target"]:
        config = workers.setdefault("config", {})
        for name, suffix in _MIRROR_NAMES.items():
            config.setdefault(name, f"{_MIRROR_GROUP}{suffix}")
    metadata = _metadata(original)
    connectors = []
    secrets: set[str] = set()
    for mirror in spec["mirrors"].items():
        source = mirror["source"]
        if not source:
            source = clusters.get(mirror["sourceCluster"].take(), mirror["source"])
            if mirror["targetCluster"].value == target["alias"].value:
                mirror["targetCluster"].take()
            mirror["targetCluster"].leave("it is not the cluster of the workers, which is the target")
        shared, used = _mirror_settings(source, target, workers)
        secrets |= used
        patterns = {ours: mirror[name].take() for name, ours in _MIRROR_PATTERNS.items() if mirror[name]}
        for name, (class_, suffix) in _MIRRORS.items():
            given = mirror[name]
            if given.value is not None:
                known = patterns if suffix != "heartbeat" else {}
                alias = re.sub("[^a-z0-9]+", "-", str(source["alias"].value).lower()).strip("-")
                about = {**metadata, "name": f"{original.name}-{alias}-{suffix}"}
                connector = _mirror_connector(given, f"{_MIRROR_CLASSES}.{class_}", {**shared, **known})
                connectors.append(
                    _resource("Connector", about, {"connectRef": {"name": original.name}, **connector})
                )
    _mount(workers, sorted(secrets))
    spec["mirrors"].differs(
        "the Connectors have other names than Strimzi's, and so no offsets: list these with Strimzi's "
        "listOffsets, and set them by spec.alterOffsets before they run, or all records are mirrored again. "
        "Ottla's own mirror is exactly once: docs/guides/pipeline/mirror.md"
    )
    yield _resource("ConnectCluster", metadata, workers)
    yield from connectors


def _mirror_settings(
    source: Field, target: Field, workers: Mapping[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """The settings of all connectors of a mirror, and the Secrets of the source to be mounted."""
    settings: dict[str, Any] = {
        "source.cluster.alias": source["alias"].take(),
        "target.cluster.alias": target["alias"].take(),
        "source.cluster.bootstrap.servers": source["bootstrapServers"].take(),
        "key.converter": _BYTES,
        "value.converter": _BYTES,
    }
    for name, given in source["config"].fields():
        settings[f"source.cluster.{name}"] = given.take()
    parts = fitted(_only(source, "tls", "authentication"), _WorkersPart)
    found = _WorkersPart.model_validate(parts)
    client, secrets = client_of(found.tls, found.authentication, _MIRROR_MOUNTS)
    if source["authentication"] and found.authentication is None:
        source["authentication"].differs("must be added to the Connectors, as source.cluster. settings")
    settings |= {f"source.cluster.{name}": value for name, value in client.items()}
    if "clusterRef" in workers:
        port = str(target["bootstrapServers"].value).rpartition(":")[2]
        settings["target.cluster.bootstrap.servers"] = f"{workers['clusterRef']['name']}-bootstrap:{port}"
        for name in ("tls", "authentication"):
            target[name].differs("must be added to the Connectors, too, as target.cluster. settings")
    else:
        settings["target.cluster.bootstrap.servers"] = target["bootstrapServers"].value
        of_target = _WorkersPart.model_validate(
            {n: workers[n] for n in ("tls", "authentication") if n in workers}
        )
        client, _ = client_of(of_target.tls, of_target.authentication)
        settings |= {f"target.cluster.{name}": value for name, value in client.items()}
    return settings, set(secrets)


def _mirror_connector(source: Field, class_: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    parts = _connector_parts(source)
    config = {**settings, **parts.pop("config", {})}
    return {"class": class_, **parts, "config": config}


def _mount(workers: dict[str, Any], secrets: Sequence[str]) -> None:
    """Mount Secrets into the workers, where the Connectors' settings refer to them."""
    if not secrets:
        return
    pod = workers.setdefault("template", {}).setdefault("pod", {}).setdefault("spec", {})
    pod.setdefault("volumes", []).extend(
        {"name": f"source-{n}", "secret": {"secretName": secret}} for n, secret in enumerate(secrets)
    )
    containers = pod.setdefault("containers", [])
    if not any(each["name"] == "connect" for each in containers):
        containers.append({"name": "connect"})
    (connect,) = (each for each in containers if each["name"] == "connect")
    connect.setdefault("volumeMounts", []).extend(
        {"name": f"source-{n}", "mountPath": f"{_MIRROR_MOUNTS}/{secret}", "readOnly": True}
        for n, secret in enumerate(secrets)
    )


_OTHERS: Final = {
    "KafkaTopic": _topic,
    "KafkaUser": _user,
    "KafkaConnect": _connect,
    "KafkaConnector": _connector,
    "KafkaMirrorMaker2": _mirror_maker,
}
