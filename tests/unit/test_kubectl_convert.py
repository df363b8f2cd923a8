"""`kubectl ottla convert`: Strimzi's resources become ours, and no field is dropped without a note."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ottla_operator.kubectl import command
from ottla_operator.kubectl.strimzi.conversion import Conversion, convert
from ottla_operator.kubectl.strimzi.fields import leaves, path_text
from tests.unit.test_kubectl_roll import changes

__all__ = ["changes"]

CLUSTER = """
apiVersion: kafka.strimzi.io/v1beta2
kind: Kafka
metadata:
  name: shop
  namespace: eu
  uid: 5f3c
  labels: {team: orders, strimzi.io/part: x}
  annotations: {strimzi.io/pause-reconciliation: "true", note: mine, strimzi.io/kraft: enabled}
  finalizers: [one]
spec:
  kafka:
    version: 3.9.0
    metadataVersion: 3.9-IV0
    image: kafka:3.9
    replicas: 5
    listeners:
      - {name: plain, port: 9092, type: internal, tls: false}
      - name: tls
        port: 9093
        type: internal
        tls: true
        authentication: {type: tls}
        configuration:
          brokerCertChainAndKey: {secretName: own, certificate: a.crt, key: a.key}
          useServiceDnsDomain: true
      - {name: route, port: 9094, type: route, tls: true}
      - {name: token, port: 9095, type: internal, tls: true, authentication: {type: unheard-of, claim: x}}
    config:
      min.insync.replicas: 2
      auto.create.topics.enable: false
      inter.broker.protocol.version: "3.8"
      log.dirs: /elsewhere
      unheard.of: 1
      many: [1, 2]
    authorization: {type: simple, superUsers: [CN=root, admin], supportsAdminApi: true}
    rack: {topologyKey: zone, type: topology-label}
    storage: {type: persistent-claim, size: 10Gi, class: fast, deleteClaim: true, selector: {a: b}}
    resources: {requests: {cpu: 1}, limits: {memory: 2Gi}}
    jvmOptions: {-Xmx: 2g}
    metricsConfig: {type: jmxPrometheusExporter}
    logging: {type: inline, loggers: {a: DEBUG}}
    livenessProbe: {periodSeconds: 3}
    quotas: {type: kafka, producerByteRate: 1000, requestPercentage: 55, excludedPrincipals: [a]}
    template:
      pod:
        metadata: {labels: {a: b}, annotations: {c: d}}
        tolerations: [{key: k, operator: Exists}]
        affinity: {nodeAffinity: {x: 1}}
        priorityClassName: high
        terminationGracePeriodSeconds: 60
        securityContext: {runAsUser: 5}
        volumes: [{name: extra, configMap: {name: m}}, {name: host, hostPath: {path: /}}]
        tmpDirSizeLimit: 5Mi
      kafkaContainer:
        env: [{name: A, value: b}]
        volumeMounts: [{name: extra, mountPath: /mnt/extra}]
        securityContext: {privileged: true}
      podDisruptionBudget: {maxUnavailable: 2, metadata: {labels: {x: y}}}
      bootstrapService: {metadata: {labels: {x: y}}}
  zookeeper:
    replicas: 5
    storage: {type: persistent-claim, size: 3Gi, class: slow}
    jvmOptions: {-Xms: 100m, -Xmx: 300m}
    resources: {requests: {memory: 1Gi}}
    config: {tickTime: 10}
    template: {pod: {schedulerName: other}, zookeeperContainer: {env: [{name: Z, value: z}]}}
  clusterCa: {validityDays: 100, renewalDays: 10, generateSecretOwnerReference: false}
  clientsCa: {validityDays: 90, renewalDays: 9}
  entityOperator: {topicOperator: {}, userOperator: {watchedNamespace: a}}
  cruiseControl:
    brokerCapacity: {inboundNetwork: 100KiB/s, outboundNetwork: 5MB/s, cpu: "2", overrides: []}
    autoRebalance: [{mode: add-brokers, template: {name: t}}, {mode: unheard-of}]
    config: {goals: a}
  kafkaExporter: {topicRegex: ".*"}
  maintenanceTimeWindowsOfOthers: ["* *"]
"""
POOLS = """
apiVersion: v1
kind: List
items:
- apiVersion: kafka.strimzi.io/v1
  kind: Kafka
  metadata: {name: pooled}
  spec:
    kafka:
      replicas: 9
      listeners: [{name: plain, port: 9092, type: internal, tls: false}]
      template: {pod: {priorityClassName: low}, kafkaContainer: {env: [{name: A, value: b}]}}
- apiVersion: kafka.strimzi.io/v1
  kind: KafkaNodePool
  metadata: {name: controllers, labels: {strimzi.io/cluster: pooled}}
  spec: {replicas: 3, roles: [controller], storage: {type: ephemeral}}
- apiVersion: kafka.strimzi.io/v1
  kind: KafkaNodePool
  metadata: {name: first, labels: {strimzi.io/cluster: pooled}}
  spec:
    replicas: 4
    roles: [controller, broker]
    storage:
      type: jbod
      volumes:
        - {id: 0, type: persistent-claim, size: 1Gi, kraftMetadata: shared}
        - {id: 1, type: persistent-claim, size: 2Gi}
    resources: {requests: {cpu: 2}}
    template: {pod: {priorityClassName: high}}
- apiVersion: kafka.strimzi.io/v1
  kind: KafkaNodePool
  metadata: {name: second, labels: {strimzi.io/cluster: pooled}}
  spec: {replicas: 2, roles: [broker], storage: {type: persistent-claim, size: 1Gi}}
- apiVersion: kafka.strimzi.io/v1
  kind: KafkaNodePool
  metadata: {name: lost, labels: {strimzi.io/cluster: elsewhere}}
  spec: {replicas: 2, roles: [broker]}
"""
TOPICS = """
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaTopic
metadata: {name: orders, labels: {strimzi.io/cluster: shop}, annotations: {strimzi.io/managed: "false"}}
spec:
  topicName: Orders
  partitions: 12
  replicas: 3
  config: {retention.ms: 7200000, cleanup.policy: compact, unheard.of: 1, segment.bytes: [1]}
status: {observedGeneration: 4}
---
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaTopic
metadata: {name: consumer-offsets---84e7a678d08f4bd226872e5cdd4eb5, labels: {strimzi.io/cluster: shop}}
spec: {topicName: __consumer_offsets, partitions: 50}
"""
USERS = """
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaUser
metadata: {name: alice, labels: {strimzi.io/cluster: shop}}
spec:
  authentication:
    type: scram-sha-512
    password: {valueFrom: {secretKeyRef: {name: given, key: p, optional: false}}}
  authorization:
    type: simple
    acls:
      - resource: {type: topic, name: orders, patternType: prefix}
        operations: [Read, Describe]
        host: 10.0.0.1
        type: deny
      - {resource: {type: group, name: g}, operation: Read}
      - {resource: {type: group, name: h}, operation: All, operations: [Read]}
      - {resource: {type: planet, name: mars}, operations: [Read]}
      - {resource: {type: topic, name: orders}, operations: [Read, Fly]}
  quotas: {producerByteRate: 1000, requestPercentage: 55, controllerMutationRate: 0}
  template: {secret: {metadata: {labels: {a: b}}}}
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaUser
metadata: {name: bob, labels: {strimzi.io/cluster: shop}}
spec:
  authentication: {type: tls, validityDays: 5}
  quotas: {consumerByteRate: 7}
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaUser
metadata: {name: carol, labels: {strimzi.io/cluster: shop}}
spec:
  authentication: {type: tls-external}
  authorization: {type: unheard-of, url: x}
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaBridge
metadata: {name: bridge}
spec: {replicas: 1, bootstrapServers: x}
"""
CONNECTS = """
apiVersion: kafka.strimzi.io/v1
kind: KafkaConnect
metadata: {name: workers, annotations: {strimzi.io/use-connector-resources: "true"}}
spec:
  version: 4.3.1
  image: mine
  replicas: 3
  bootstrapServers: shop-kafka-bootstrap:9093
  groupId: g
  configStorageTopic: c
  offsetStorageTopic: o
  statusStorageTopic: s
  tls: {trustedCertificates: [{secretName: shop-cluster-ca-cert, pattern: "*.crt"}]}
  authentication:
    type: scram-sha-512
    username: alice
    passwordSecret: {secretName: alice, password: password}
  config: {config.storage.replication.factor: -1, rest.port: 1, many: [1]}
  resources: {requests: {cpu: 1}}
  jvmOptions: {-Xmx: 2g, -Xms: 1g}
  plugins: [{name: dbz, artifacts: [{type: image, reference: dbz:1, pullPolicy: Always}]}]
  build: {output: {type: docker, image: x}}
  template: {pod: {priorityClassName: high}, connectContainer: {env: [{name: A, value: b}]}}
  rack: {topologyKey: zone}
---
apiVersion: kafka.strimzi.io/v1
kind: KafkaConnect
metadata: {name: far}
spec:
  bootstrapServers: elsewhere:9093
  tls: {trustedCertificates: [{secretName: a, certificate: x.crt}]}
  authentication: {type: tls, certificateAndKey: {secretName: b, certificate: x.crt, key: x.key}}
---
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaConnector
metadata: {name: source, labels: {strimzi.io/cluster: workers}}
spec:
  class: X
  tasksMax: 2
  pause: true
  autoRestart: {enabled: true, maxRestarts: 4}
  version: "1"
  config: {topic: t, many: [1]}
"""

MIRRORS = """
apiVersion: kafka.strimzi.io/v1
kind: KafkaMirrorMaker2
metadata: {name: mirror}
spec:
  version: 4.3.1
  replicas: 2
  target:
    alias: west
    bootstrapServers: west:9093
    groupId: g
    configStorageTopic: c
    offsetStorageTopic: o
    statusStorageTopic: s
    config: {config.storage.replication.factor: -1}
    tls: {trustedCertificates: [{secretName: west-ca, certificate: ca.crt}]}
    authentication:
      type: scram-sha-512
      username: alice
      passwordSecret: {secretName: alice, password: password}
  mirrors:
  - source:
      alias: East_1
      bootstrapServers: east:9093
      config: {max.poll.records: 5}
      tls: {trustedCertificates: [{secretName: east-ca, certificate: ca.crt}]}
      authentication: {type: tls, certificateAndKey: {secretName: bob, certificate: x.crt, key: x.key}}
    sourceConnector:
      tasksMax: 4
      state: stopped
      autoRestart: {enabled: true}
      config: {replication.factor: -1}
      listOffsets: {toConfigMap: {name: listed}}
    checkpointConnector: {config: {sync.group.offsets.enabled: true}}
    topicsPattern: "a.*"
    topicsExcludePattern: "b.*"
    groupsPattern: "c.*"
    groupsExcludePattern: "d.*"
  resources: {requests: {cpu: 1}}
  template: {connectContainer: {env: [{name: A, value: b}]}}
  rack: {topologyKey: zone}
---
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaMirrorMaker2
metadata: {name: older}
spec:
  connectCluster: west
  clusters:
  - {alias: east, bootstrapServers: "east:9092"}
  - {alias: west, bootstrapServers: "shop-kafka-bootstrap:9092", config: {offset.storage.partitions: 3}}
  mirrors:
  - sourceCluster: east
    targetCluster: west
    sourceConnector: {pause: true}
    heartbeatConnector: {}
    topicsPattern: ".*"
"""


def documents(text: str) -> list[dict[str, Any]]:
    loaded = [content for content in yaml.safe_load_all(text) if content]
    return [one for content in loaded for one in content.get("items", [content])]


def result(done: Conversion, key: str) -> dict[str, Any]:
    (found,) = [each for each in done.results if f"{each['kind']}/{each['metadata']['name']}" == key]
    return found


def notes(done: Conversion, key: str) -> dict[str, str]:
    (found,) = [original for original in done.originals if original.key == key]
    return {path_text(note.path): note.text for note in found.notes()}


def at(content: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        content = content[part]
    return content


def altered(value: object) -> object:
    """Another value of the same type, where there is one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("y" if value[-1:] != "y" else "z")
    return "something" if value == {} else [{"some": "thing"}]


@pytest.mark.parametrize("text", [CLUSTER, POOLS, TOPICS, USERS, CONNECTS, MIRRORS])
def test_the_results_are_valid(text: str) -> None:
    assert convert(documents(text)).problems == []


@pytest.mark.parametrize("text", [CLUSTER, POOLS, TOPICS, USERS, CONNECTS, MIRRORS])
def test_each_field_is_noted_or_decides_the_result(text: str) -> None:
    contents = documents(text)
    before = convert(contents)
    noted_before = [original.notes() for original in before.originals]
    silent = []
    for number, original in enumerate(before.originals):
        noted = [note.path for note in noted_before[number] if note.left_out]
        for path in leaves(original.wanted()):
            if any(path[: len(above)] == above for above in noted):
                continue
            other = copy.deepcopy(contents)
            *above, last = path
            parent = at(other[number], tuple(above))
            parent[last] = altered(parent[last])
            after = convert(other)
            if before.results == after.results and noted_before == [one.notes() for one in after.originals]:
                silent.append(f"{original.key} {path_text(path)}")
    assert silent == []


def test_a_kafka_becomes_a_broker_cluster() -> None:
    done = convert(documents(CLUSTER))
    cluster = result(done, "BrokerCluster/shop")
    assert cluster["metadata"] == {
        "name": "shop",
        "namespace": "eu",
        "labels": {"team": "orders"},
        "annotations": {"ottla.dev/pause-reconciliation": "true", "note": "mine"},
    }
    spec = cluster["spec"]
    assert spec["replicas"] == 5
    assert spec["version"] == "3.8"
    assert spec["config"] == {"min.insync.replicas": 2, "auto.create.topics.enable": False, "unheard.of": 1}
    assert spec["authorization"] == {"type": "simple", "superUsers": ["CN=root", "admin"]}
    assert spec["rack"] == {"topologyKey": "zone"}
    assert spec["storage"] == {"size": "10Gi", "class": "fast", "deleteClaim": True}
    assert spec["clientsCa"] == {"validityDays": 90, "renewalDays": 9}
    assert spec["zookeeper"]["managed"]["heap"] == "300m"
    assert spec["zookeeper"]["managed"]["storage"] == {"size": "3Gi", "class": "slow"}
    assert spec["rebalance"] == {
        "mode": "Auto",
        "triggers": ["ScaleUp"],
        "capacity": {"networkIn": "100Ki", "networkOut": "5M"},
    }
    pod = spec["template"]["pod"]
    assert pod["spec"]["volumes"] == [{"name": "extra", "configMap": {"name": "m"}}]
    assert pod["spec"]["containers"] == [
        {
            "name": "broker",
            "env": [{"name": "A", "value": "b"}],
            "volumeMounts": [{"name": "extra", "mountPath": "/mnt/extra"}],
        }
    ]
    assert spec["template"]["podDisruptionBudget"] == {"maxUnavailable": 2}
    default = result(done, "Quota/shop-default")["spec"]
    assert default["entity"] == {"user": "<default>"}
    assert default["limits"] == {"producerByteRate": 1000, "requestPercentage": 55}


def test_an_authorizer_in_java_is_left_out_whole() -> None:
    documented = documents(CLUSTER)
    documented[0]["spec"]["kafka"]["authorization"] = {
        "type": "custom",
        "authorizerClass": "io.example.Mine",
        "superUsers": ["CN=root"],
    }
    done = convert(documented)
    assert "authorization" not in result(done, "BrokerCluster/shop")["spec"]
    path = ("spec", "kafka", "authorization")
    noted = [str(note) for note in done.originals[0].notes() if note.path == path]
    assert len(noted) == 2, "why, and what follows"
    assert any("write it in Python" in text for text in noted)


def test_a_listener_whose_authentication_is_unknown_is_not_opened() -> None:
    done = convert(documents(CLUSTER))
    assert [each["name"] for each in result(done, "BrokerCluster/shop")["spec"]["listeners"]] == [
        "plain",
        "tls",
    ]
    assert "without it the listener would be open" in notes(done, "Kafka/shop")["spec.kafka.listeners[3]"]


def test_settings_that_a_broker_refuses_are_left_out_with_its_reason() -> None:
    noted = notes(convert(documents(CLUSTER)), "Kafka/shop")
    assert noted["spec.kafka.config[log.dirs]"] == "is set by the operator: on the broker's volume"
    assert "unheard.of" in noted["spec.kafka.config[unheard.of]"]


def test_the_first_pool_of_brokers_is_the_cluster() -> None:
    done = convert(documents(POOLS))
    spec = result(done, "BrokerCluster/pooled")["spec"]
    assert spec["replicas"] == 4
    assert spec["storage"] == {"volumes": [{"id": 0, "size": "1Gi"}, {"id": 1, "size": "2Gi"}]}
    assert spec["template"]["pod"]["spec"]["priorityClassName"] == "high"
    assert spec["template"]["pod"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]
    assert "first has its own" in notes(done, "Kafka/pooled")["spec.kafka.replicas"]
    second = result(done, "BrokerPool/second")
    assert second["spec"] == {
        "clusterRef": {"name": "pooled"},
        "replicas": 2,
        "storage": {"size": "1Gi"},
    }
    assert notes(done, "KafkaNodePool/second") == {}
    assert "not in the input" in notes(done, "KafkaNodePool/lost")["spec"]


def test_a_cluster_without_its_pools_has_three_brokers_and_a_note() -> None:
    done = convert(documents(POOLS)[:1])
    assert result(done, "BrokerCluster/pooled")["spec"]["replicas"] == 9
    (kafka,) = documents(POOLS)[:1]
    del kafka["spec"]["kafka"]["replicas"]
    done = convert([kafka])
    assert result(done, "BrokerCluster/pooled")["spec"]["replicas"] == 3
    assert "3 brokers are assumed" in notes(done, "Kafka/pooled")["spec.kafka"]


def test_topics_keep_their_names_and_internal_ones_are_left_out() -> None:
    done = convert(documents(TOPICS))
    (topic,) = done.results
    assert topic["spec"] == {
        "clusterRef": {"name": "shop"},
        "topicName": "Orders",
        "partitions": 12,
        "replicas": 3,
        "config": {"retention.ms": 7200000, "cleanup.policy": "compact"},
    }
    assert topic["metadata"]["annotations"] == {"ottla.dev/managed": "false"}


def test_users_keep_their_principals_and_whole_acls() -> None:
    done = convert(documents(USERS))
    alice = result(done, "User/alice")["spec"]
    assert alice["authentication"]["password"]["valueFrom"]["secretKeyRef"] == {"name": "given", "key": "p"}
    assert alice["authorization"]["acls"] == [
        {
            "resource": {"type": "topic", "name": "orders", "patternType": "prefix"},
            "operations": ["Read", "Describe"],
            "host": "10.0.0.1",
            "type": "deny",
        },
        {"resource": {"type": "group", "name": "g"}, "operations": ["Read"]},
        {"resource": {"type": "group", "name": "h"}, "operations": ["Read"]},
    ]
    noted = notes(done, "KafkaUser/alice")
    assert "spec.authorization.acls[3]" in noted
    assert "spec.authorization.acls[4]" in noted
    assert result(done, "Quota/alice")["spec"]["entity"] == {"user": "alice"}
    assert result(done, "Quota/bob")["spec"]["entity"] == {"user": "CN=bob"}
    assert result(done, "User/carol")["spec"]["authentication"] == {"type": "tls"}
    assert "same principal" in notes(done, "KafkaUser/carol")["spec.authentication.type"]


def test_workers_of_a_cluster_of_strimzi_are_those_of_its_brokercluster() -> None:
    done = convert(documents(CONNECTS))
    spec = result(done, "ConnectCluster/workers")["spec"]
    assert spec["clusterRef"] == {"name": "shop"}
    assert spec["user"] == "alice"
    assert spec["config"] == {
        "group.id": "g",
        "config.storage.topic": "c",
        "offset.storage.topic": "o",
        "status.storage.topic": "s",
        "config.storage.replication.factor": -1,
    }
    assert spec["heap"] == "2g"
    far = result(done, "ConnectCluster/far")["spec"]
    assert far["bootstrapServers"] == "elsewhere:9093"
    assert far["authentication"]["certificateAndKey"]["secretName"] == "b"
    assert result(done, "Connector/source")["spec"] == {
        "connectRef": {"name": "workers"},
        "class": "X",
        "tasksMax": 2,
        "autoRestart": {"enabled": True, "maxRestarts": 4},
        "state": "paused",
        "config": {"topic": "t"},
    }


def test_mirrors_become_workers_of_the_target_and_their_connectors() -> None:
    done = convert(documents(MIRRORS))
    assert done.problems == []
    workers = result(done, "ConnectCluster/mirror")["spec"]
    assert (workers["bootstrapServers"], workers["replicas"]) == ("west:9093", 2)
    assert workers["config"]["offset.storage.topic"] == "o"
    pod = workers["template"]["pod"]["spec"]
    assert [each["secret"]["secretName"] for each in pod["volumes"]] == ["bob", "east-ca"]
    (container,) = pod["containers"]
    assert container["env"] == [{"name": "A", "value": "b"}]
    assert [each["mountPath"] for each in container["volumeMounts"]] == ["/mnt/bob", "/mnt/east-ca"]
    source = result(done, "Connector/mirror-east-1-source")["spec"]
    assert source["class"] == "org.apache.kafka.connect.mirror.MirrorSourceConnector"
    assert (source["connectRef"], source["tasksMax"], source["state"]) == ({"name": "mirror"}, 4, "stopped")
    bytes_ = "org.apache.kafka.connect.converters.ByteArrayConverter"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    password = "${directory:/etc/ottla-secrets/alice:password}"
    assert source["config"] == {
        "source.cluster.alias": "East_1",
        "source.cluster.bootstrap.servers": "east:9093",
        "source.cluster.max.poll.records": 5,
        "source.cluster.security.protocol": "SSL",
        "source.cluster.ssl.truststore.type": "PEM",
        "source.cluster.ssl.truststore.certificates": "${directory:/mnt/east-ca:ca.crt}",
        "source.cluster.ssl.keystore.type": "PEM",
        "source.cluster.ssl.keystore.certificate.chain": "${directory:/mnt/bob:x.crt}",
        "source.cluster.ssl.keystore.key": "${directory:/mnt/bob:x.key}",
        "target.cluster.alias": "west",
        "target.cluster.bootstrap.servers": "west:9093",
        "target.cluster.security.protocol": "SASL_SSL",
        "target.cluster.ssl.truststore.type": "PEM",
        "target.cluster.ssl.truststore.certificates": "${directory:/etc/ottla-secrets/west-ca:ca.crt}",
        "target.cluster.sasl.mechanism": "SCRAM-SHA-512",
        "target.cluster.sasl.jaas.config": f'{scram} required username="alice" password="{password}";',
        "key.converter": bytes_,
        "value.converter": bytes_,
        "topics": "a.*",
        "topics.exclude": "b.*",
        "groups": "c.*",
        "groups.exclude": "d.*",
        "replication.factor": -1,
    }
    checkpoints = result(done, "Connector/mirror-east-1-checkpoint")["spec"]
    assert checkpoints["config"]["sync.group.offsets.enabled"] is True
    noted = notes(done, "KafkaMirrorMaker2/mirror")
    assert "spec.alterOffsets before they run" in noted["spec.mirrors"]
    assert noted["spec.rack"] == "there is no equivalent"


def test_older_mirrors_name_clusters_by_alias_and_keep_the_names_of_strimzis_topics() -> None:
    done = convert(documents(MIRRORS))
    workers = result(done, "ConnectCluster/older")["spec"]
    assert workers["clusterRef"] == {"name": "shop"}
    assert workers["config"] == {
        "offset.storage.partitions": 3,
        "group.id": "mirrormaker2-cluster",
        "config.storage.topic": "mirrormaker2-cluster-configs",
        "offset.storage.topic": "mirrormaker2-cluster-offsets",
        "status.storage.topic": "mirrormaker2-cluster-status",
    }
    source = result(done, "Connector/older-east-source")["spec"]
    assert source["state"] == "paused"
    assert source["config"]["target.cluster.bootstrap.servers"] == "shop-bootstrap:9092"
    heartbeats = result(done, "Connector/older-east-heartbeat")["spec"]
    assert heartbeats["class"].endswith("MirrorHeartbeatConnector")
    assert "topics" not in heartbeats["config"]


def test_a_missing_label_is_a_problem_of_the_result() -> None:
    (topic, _) = documents(TOPICS)
    del topic["metadata"]["labels"]
    done = convert([topic])
    assert any("clusterRef" in problem for problem in done.problems)


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(command.main, ["convert", *arguments], input=stdin)


def test_files_are_converted_to_stdout_and_explained_on_stderr(changes: Path) -> None:
    done = run("-f", "-", stdin=TOPICS)
    assert done.exit_code == 0, done.output
    (topic,) = yaml.safe_load_all(done.stdout)
    assert topic["kind"] == "Topic"
    assert "spec.config[unheard.of]: not converted: " in done.stderr
    assert done.stderr.endswith("# 1 resources of Ottla from 2 of Strimzi\n")


def test_the_results_can_have_another_namespace(changes: Path) -> None:
    done = run("-f", "-", "--into", "new", stdin=TOPICS)
    (topic,) = yaml.safe_load_all(done.stdout)
    assert topic["metadata"]["namespace"] == "new"


def test_a_document_that_is_no_resource_of_strimzi_fails(changes: Path) -> None:
    done = run("-f", "-", stdin="kind: ConfigMap\n---\n- a\n")
    assert done.exit_code == 1
    assert "ConfigMap: is no resource of Strimzi, and is left out" in done.stderr


def test_a_cluster_is_read_with_what_belongs_to_it(changes: Path) -> None:
    (changes / "cluster").write_text(json.dumps({"items": documents(TOPICS)}))
    done = run("shop")
    assert done.exit_code == 0, done.output
    calls = (changes / "calls").read_text().splitlines()
    assert calls[0].startswith("get -o json kafkas.kafka.strimzi.io shop")
    assert "kafkatopics.kafka.strimzi.io" in calls[1]
    assert calls[1].endswith("-l strimzi.io/cluster=shop")


def test_a_name_or_files_are_required(changes: Path) -> None:
    assert run().exit_code == 2
    assert run("shop", "-f", "-").exit_code == 2
