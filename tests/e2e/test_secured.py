"""A cluster whose listeners are secured, seen by those who are let in and by those who are not.

One small cluster for all tests of the file, in a namespace of its own.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.apache_kafka import java_command
from ottla_operator.planning.certificates import Lifetime, Pair, certificates_in, is_issued_by, new_authority
from tests.certificates import Authority
from tests.e2e.clients import Traffic
from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.kube import Kube, wait_for
from tests.e2e.secured_clients import CERTIFIED, KNOCK, KNOWN, NODES, PASSWORDED, REPLICATION, TOPIC, Clients
from tests.oracles import needs_kafka_jars

_READY_S = 240


@pytest.fixture(scope="module")
def secured(kube: Kube, operator: str) -> Iterator[Cluster]:
    if not kube.has_node:
        pytest.skip("needs OTTLA_KUBE: real clients run on its node, where Services have names")
    namespace = f"{NAMESPACE}-secured"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "demo")
    small = {"size": "64Mi", "deleteClaim": True}
    listeners: list[dict[str, Any]] = [
        {"name": "certified", "port": CERTIFIED, "tls": True, "authentication": {"type": "tls"}},
        {"name": "passworded", "port": PASSWORDED, "tls": True, "authentication": {"type": "scram-sha-512"}},
        {"name": "outside", "port": 9095, "type": "nodeport", "tls": True, "authentication": {"type": "tls"}},
    ]
    cluster.create(
        cluster_spec(
            replicas=2,
            listeners=listeners,
            authorization={"type": "simple", "superUsers": ["CN=tester"]},
            storage=small,
            zookeeper={"managed": {"replicas": 1, "storage": small}},
            config={"min.insync.replicas": 1, "offsets.topic.replication.factor": 2},
        )
    )
    print(f"apply to Ready: {cluster.wait_ready(_READY_S):.0f} s")
    cluster.create_topic(TOPIC, partitions=4, replicas=2)
    yield cluster
    kube.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def clients(secured: Cluster, tmp_path: Path) -> Clients:
    return Clients(secured, tmp_path)


def test_javas_clients_write_and_read_with_the_stores_of_the_secrets(clients: Clients) -> None:
    needs_kafka_jars()
    properties, at = clients.java("tester"), f"{clients.host(1)}:{CERTIFIED}"
    wrote = clients.cluster.kube.run_on_node(
        *java_command("org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", at),
        *("--topic", TOPIC, "--max-messages", "20", "--producer.config", properties),
        timeout_s=300,
    )
    assert wrote.count("producer_send_success") == 20, wrote
    read = clients.cluster.kube.run_on_node(
        *java_command("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", at),
        *("--topic", TOPIC, "--from-beginning", "--max-messages", "20", "--timeout-ms", "90000"),
        *("--consumer.config", properties),
        timeout_s=300,
    )
    assert sorted(map(int, read.split())) == list(range(20))


def test_a_client_outside_comes_by_node_ports_and_knows_the_brokers_there(clients: Clients) -> None:
    listeners = {each["name"]: each for each in clients.cluster.status["listeners"]}
    servers = listeners["outside"]["bootstrapServers"]
    assert servers
    assert ".svc" not in servers, "a name that pods alone know"
    tester = clients.by_certificate(clients.certificate_of("tester"))
    checked = {"bootstrap.servers": servers, "ssl.endpoint.identification.algorithm": "https"}
    assert clients.write_and_read({**tester, **checked}, "of outside")[-1] == "of outside"


def test_unauthenticated_clients_are_refused_on_every_port(clients: Clients) -> None:
    trusted = clients.write("ca.crt", clients.authority())
    tester = clients.write("tester.pem", clients.certificate_of("tester").pem)
    eve = str(Authority().sign("tester").write_pem(clients.folder / "eve"))
    own = clients.secret("demo-cluster-operator-certs")["cluster-operator.pem"]
    of_operator = clients.write("operator.pem", own)
    doors = [
        (CERTIFIED, tester, "answered"),
        (CERTIFIED, None, "refused"),
        (CERTIFIED, eve, "refused"),
        # Each authority is for its own door.
        (CERTIFIED, of_operator, "refused"),
        (REPLICATION, tester, "refused"),
        (REPLICATION, None, "refused"),
        (REPLICATION, of_operator, "answered"),
    ]
    asked = [(clients.host(0), port, trusted, certificate) for port, certificate, _ in doors]
    found = clients.run(KNOCK, clients.write("doors.json", json.dumps(asked).encode())).split()
    assert found == [expected for _, _, expected in doors]


def test_the_operator_knows_the_roles_of_zookeeper(clients: Clients) -> None:
    roles = sorted(server["role"] for server in clients.cluster.status["zookeeper"]["servers"])
    assert roles == ["follower"] * (len(roles) - 1) + ["leader"]


def test_zookeeper_lets_in_brokers_and_the_operator_alone(clients: Clients) -> None:
    user_of_the_cluster = clients.write("tester.pem", clients.certificate_of("tester").pem)
    posing = clients.certificate_of("demo-brokers", organization="ottla.dev")
    as_a_broker = clients.write("posing.pem", posing.pem)
    own = clients.write("operator.pem", clients.secret("demo-cluster-operator-certs")["cluster-operator.pem"])
    doors = [
        (2181, False, None, "refused"),
        (2182, False, None, "refused"),
        (2182, True, None, "refused"),
        (2182, True, user_of_the_cluster, "refused"),
        (2182, True, as_a_broker, "refused"),
        (2182, True, own, "answered"),
        (3888, False, None, "refused"),
        (3888, True, user_of_the_cluster, "refused"),
    ]
    found = clients.asks_zookeeper([(port, tls, certificate) for port, tls, certificate, _ in doors])
    assert found == [expected for *_, expected in doors]


def test_scram_credentials_are_the_brokers_own_in_zookeeper(clients: Clients) -> None:
    apply_users(clients.cluster, alice=user("scram-sha-512", "Read"))
    asked = [
        f"{clients.zookeeper()}:2182",
        clients.write("ca.crt", clients.authority()),
        clients.write("operator.pem", clients.secret("demo-cluster-operator-certs")["cluster-operator.pem"]),
        clients.write("zookeeper.pem", clients.secret("demo-zookeeper")["zookeeper.pem"]),
        ["/config/users/alice", "/brokers/ids"],
    ]
    seen, (of_alice, of_ids) = json.loads(clients.run(NODES, json.dumps(asked)))
    brokers = ["x509", "CN=demo-brokers,O=ottla.dev", 31]
    assert of_alice == [brokers]
    assert of_ids == [["world", "anyone", 1], brokers]
    assert seen == "denied"


def test_an_authenticated_client_without_acl_gets_an_authorization_error(clients: Clients) -> None:
    nobody = clients.by_certificate(clients.certificate_of("nobody"))
    assert clients.write_and_read(nobody, "of nobody") == ["TOPIC_AUTHORIZATION_FAILED"]


def user(kind: str, *operations: str) -> dict[str, Any]:
    """A User's spec: what it may do to the topic; and it may read in groups `of …`."""
    acls = [
        {"resource": {"type": "topic", "name": TOPIC}, "operations": list(operations)},
        {"resource": {"type": "group", "name": "of ", "patternType": "prefix"}, "operations": ["Read"]},
    ]
    authorization = {"type": "simple", "acls": acls}
    return {"clusterRef": {"name": "demo"}, "authentication": {"type": kind}, "authorization": authorization}


def apply_users(cluster: Cluster, **users: dict[str, Any]) -> None:
    cluster.kube.apply(*(cluster.resource("User", name, spec) for name, spec in users.items()))
    for name in users:
        wait_for(f"{name} is Ready", partial(cluster.is_ready, "users.ottla.dev", name), 60)


def test_users_log_in_by_their_secrets_and_do_what_they_may(clients: Clients) -> None:
    kube, secured = clients.cluster.kube, clients.cluster
    apply_users(secured, alice=user("scram-sha-512", "Read", "Write"), carol=user("tls", "Read"))
    assert clients.write_and_read(clients.by_password("alice"), "of alice")[-1] == "of alice"
    of_carol = clients.secret("carol")
    carol = clients.by_certificate(Pair(of_carol["user.key"], of_carol["user.crt"]))
    assert clients.write_and_read(carol, "of carol") == ["TOPIC_AUTHORIZATION_FAILED"]
    apply_users(secured, carol=user("tls", "Read", "Write"))

    def may_write() -> bool:
        return clients.write_and_read(carol, "of carol")[-1] == "of carol"

    wait_for("carol may write", may_write, 60)
    before = clients.secret("alice")["password"]
    kube.delete("secret", "alice", secured.namespace)

    def anew() -> bool:
        found = kube.get("secret", "alice", secured.namespace)
        return found is not None and secured.is_ready("users.ottla.dev", "alice")

    wait_for("alice has another Secret", anew, 60)
    assert clients.secret("alice")["password"] != before
    again = "of alice, again"

    def logs_in() -> bool:
        return clients.write_and_read(clients.by_password("alice"), again)[-1] == again

    wait_for("alice logs in again", logs_in, 60)


def test_users_take_all_they_had_along(clients: Clients) -> None:
    kube, secured = clients.cluster.kube, clients.cluster
    apply_users(secured, alice=user("scram-sha-512", "Read"), carol=user("tls", "Read"))
    pem = Pair.of_pem(clients.secret("demo-cluster-operator-certs")["cluster-operator.pem"])
    operator = json.dumps(clients.by_certificate(pem, port=REPLICATION))
    assert json.loads(clients.run(KNOWN, operator)) == [["alice"], ["User:CN=carol", "User:alice"]]
    names = ("alice", "carol")
    for name in names:
        kube.delete("users.ottla.dev", name, secured.namespace)

    def gone() -> bool:
        return not any(kube.get("secret", name, secured.namespace) for name in names)

    wait_for("their Secrets are gone", gone, 60)
    assert json.loads(clients.run(KNOWN, operator)) == [[], []]


def test_certificates_are_renewed_while_brokers_run_and_clients_trust_the_old_authority(
    clients: Clients,
) -> None:
    kube, secured = clients.cluster.kube, clients.cluster
    pods, before, old = secured.brokers(), clients.shown(), clients.authority()
    # A year is what they were issued for: all are due at once.
    secured.patch({"clusterCa": {"validityDays": 400, "renewalDays": 370}})
    wait_for("another authority", lambda: clients.authority() != old, 60)
    # The kubelet looks at mounted Secrets once a minute or so, and whenever a pod has changed.
    kube.kubectl("annotate", "pod", "--all", "-n", secured.namespace, "ottla-e2e/look=again")
    wait_for("other certificates", lambda: not {*before} & {*clients.shown()}, 120, poll_s=1)
    tester = clients.by_certificate(clients.certificate_of("tester"), authority=old)
    assert clients.write_and_read(tester, "after the renewal")[-1] == "after the renewal"
    secured.wait_ready(_READY_S)
    assert secured.brokers() == pods


def test_keys_of_authorities_are_replaced_while_brokers_and_clients_run(clients: Clients) -> None:
    """Two of the three phases: the last one needs certificates that are five minutes old."""
    kube, secured = clients.cluster.kube, clients.cluster
    pods, old = secured.brokers(), clients.certificate_of("tester")
    authorities = ("demo-cluster-ca", "demo-clients-ca")

    def trusted(name: str) -> list[bytes]:
        return certificates_in(clients.secret(f"{name}-cert")["ca.crt"])

    def look_again() -> None:
        again = f"ottla-e2e/look={time.time()}"
        kube.kubectl("annotate", "pod", "--all", "-n", secured.namespace, again, "--overwrite")

    secured.create_topic("traffic", partitions=4, replicas=2)
    before = {name: trusted(name) for name in authorities}
    with Traffic(secured, "traffic", per_second=50, security=clients.by_certificate(old)) as traffic:
        kube.kubectl(
            *("annotate", "secret", *authorities, "-n", secured.namespace, "ottla.dev/force-replace=true")
        )

        def both() -> bool:
            return all(trusted(name)[1:] == before[name] for name in authorities)

        wait_for("both generations are trusted", both, 60)
        look_again()
        new = clients.write("new.pem", clients.certificate_of("tester").pem)
        trust = clients.write("old-ca.crt", before["demo-cluster-ca"][0])

        def lets_in() -> bool:
            doors = [(clients.host(broker), CERTIFIED, trust, new) for broker in range(len(pods))]
            found = clients.run(KNOCK, clients.write("doors.json", json.dumps(doors).encode()))
            return found.split() == ["answered"] * len(pods)

        wait_for("brokers let in who is of the clients' new authority", lets_in, 120)
        traffic.wait_for_more(50)
        # As it would be five minutes later.
        key, earlier_ms = clients.secret("demo-cluster-ca")["ca.key"], time.time_ns() // 1_000_000 - 300_000
        aged = new_authority("demo-cluster-ca", Lifetime(400, 370), earlier_ms, os.urandom, key)
        bundle = b"".join((aged.certificate, *before["demo-cluster-ca"]))
        data = {"ca.crt": base64.b64encode(bundle).decode()}
        kube.patch("secret", "demo-cluster-ca-cert", secured.namespace, {"data": data})
        own = clients.secret("demo-cluster-operator-certs")["cluster-operator.pem"]

        def issued() -> bool:
            return clients.secret("demo-cluster-operator-certs")["cluster-operator.pem"] != own

        wait_for("certificates of the new authority", issued, 60)
        look_again()

        def shown() -> bool:
            return all(is_issued_by(each.encode(), aged.certificate) for each in clients.shown())

        wait_for("brokers show certificates of the new authority", shown, 120)
        late = clients.by_certificate(old, authority=aged.certificate)
        assert clients.write_and_read(late, "with an old certificate")[-1] == "with an old certificate"
        traffic.wait_for_more(50)
    traffic.assert_lost_nothing()
    secured.wait_ready(_READY_S)
    assert secured.is_in_sync()
    assert secured.brokers() == pods


def test_brokers_are_rolled_and_added(clients: Clients) -> None:
    secured, before = clients.cluster, clients.cluster.brokers()
    secured.patch({"replicas": 3, "config": {"queued.max.requests": 4}})

    def replaced() -> bool:
        now = secured.brokers()
        return len(now) == 3 and not set(now.values()) & set(before.values())

    wait_for("every pod is a new one, and there are three", replaced, 180)
    print(f"rolled and grown: {secured.wait_ready(_READY_S):.0f} s more")
    assert secured.is_in_sync()
    assert len({*clients.shown()}) == 3
    tester = clients.by_certificate(clients.certificate_of("tester"))
    assert clients.write_and_read(tester, "after the roll")[-1] == "after the roll"
    listeners = {each["name"]: each for each in secured.status["listeners"]}
    assert listeners["certified"]["certificates"] == [clients.authority().decode()]


def test_a_cluster_that_is_secured_stays_so(secured: Cluster) -> None:
    with pytest.raises(AssertionError, match="could not connect to each other"):
        secured.patch({"listeners": [{"name": "plain", "port": 9092}], "authorization": None})
