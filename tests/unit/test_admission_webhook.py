"""The validating webhook: what it refuses and what it warns of, its certificate, kopf's server with it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import kube_config

from ottla_operator.kubernetes import admission
from ottla_operator.kubernetes.admission import Reviewer, review
from ottla_operator.kubernetes.api import Api, ApiError, load_config
from ottla_operator.kubernetes.webhook_certificate import CONFIGURATION, WebhookCertificate
from tests.judges.up_session import free_ports
from tests.worlds.fake_api_server import FakeApiServer, kubeconfig
from tests.worlds.kubernetes_simulation import NAMESPACE, InMemoryApi

DAY_MS = 24 * 3600 * 1000
REF = {"clusterRef": {"name": "demo"}}
SERVICE = "ottla-webhook"


def item(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "spec": spec}


def cluster(**config: Any) -> dict[str, Any]:
    return item("BrokerCluster", "demo", {"replicas": 3, "config": config})


WRONG = {"num.io.threads": "many"}
MISTAKE = "spec.config[num.io.threads]: 'many' is not allowed: must be a whole number (int)"


def problems(new: dict[str, Any], old: dict[str, Any] | None = None) -> tuple[str, ...]:
    return review(new["kind"], new, old, allow_sidecars=False).problems


# ---- the decision


def test_a_creation_and_an_update_are_refused_with_the_field_and_what_is_allowed() -> None:
    assert problems(cluster(**WRONG)) == (MISTAKE,)
    assert problems(cluster(**WRONG), cluster()) == (MISTAKE,)
    assert problems(cluster(), cluster(**WRONG)) == ()


def test_a_transition_is_reviewed() -> None:
    old, new = (item("Topic", "orders", {**REF, "partitions": n}) for n in (6, 3))
    assert problems(new, old) == (
        "spec.partitions: partitions cannot be decreased: Kafka cannot remove partitions",
    )


def test_a_mistake_that_was_there_before_is_a_warning() -> None:
    new = item("BrokerCluster", "demo", {"replicas": 4, "config": WRONG})
    found = review("BrokerCluster", new, cluster(**WRONG), allow_sidecars=False)
    assert found.problems == ()
    assert found.warnings == (f"{MISTAKE} (as before; the last valid spec stays in force)",)


def test_an_object_that_is_deleted_or_only_labelled_is_accepted_whatever_it_says() -> None:
    old = cluster(**WRONG)
    assert problems(item("BrokerCluster", "demo", {"replicas": "x"}, deletionTimestamp="2026"), old) == ()
    labelled = item("BrokerCluster", "demo", old["spec"], labels={"a": "b"})
    assert review("BrokerCluster", labelled, old, allow_sidecars=False) == admission.Review()


def test_a_name_that_the_api_server_is_still_to_generate_is_completed() -> None:
    new = {"kind": "Topic", "metadata": {"generateName": "orders-"}, "spec": REF}
    assert problems(new) == ()
    too_long = {"kind": "Pipeline", "metadata": {"generateName": "a" * 36}, "spec": {**REF, "job": "lake"}}
    assert len(problems(too_long)) == 1


def test_sidecars_are_refused_unless_the_operator_allows_them() -> None:
    sidecar = {"pod": {"spec": {"containers": [{"name": "log", "image": "x"}]}}}
    new = item("BrokerCluster", "demo", {"replicas": 3, "template": sidecar})
    assert len(review("BrokerCluster", new, None, allow_sidecars=False).problems) == 1
    assert review("BrokerCluster", new, None, allow_sidecars=True).problems == ()


# ---- warnings that need other objects


@pytest.fixture
def api() -> InMemoryApi:
    api = InMemoryApi()
    api.apply_resource("BrokerCluster", "demo", {"replicas": 3})
    api.apply_resource("Topic", "orders", REF)
    api.apply_resource("User", "anna", REF)
    api.apply_resource("Quota", "slow", {**REF, "entity": {"user": "x"}, "limits": {"producerByteRate": 1}})
    api.calls.clear()
    return api


def warnings(api: InMemoryApi, *items: dict[str, Any]) -> list[str]:
    reviewer = Reviewer(api, allow_sidecars=False, now_s=lambda: 1.0)

    async def all_of() -> list[str]:
        return [
            text
            for new in items
            for text in (await reviewer.review(new["kind"], NAMESPACE, new, None)).warnings
        ]

    return asyncio.run(all_of())


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (item("Topic", "new", REF), ""),
        (item("Topic", "orders", REF), ""),
        (item("Topic", "new", {"clusterRef": {"name": "no"}}), "there is no BrokerCluster no in namespace"),
        (item("Topic", "new", {**REF, "topicName": "orders"}), "Topic orders is about topic orders, too"),
        (item("Topic", "new", {"clusterRef": {"name": "no"}, "topicName": "orders"}), "no BrokerCluster no"),
        (item("User", "new", {**REF, "userName": "anna"}), "User anna is about user anna, too"),
        (
            item("Quota", "new", {**REF, "entity": {"user": "x"}, "limits": {"producerByteRate": 2}}),
            "Quota slow is about quotas of user x, too",
        ),
        (item("Pipeline", "new", {**REF, "job": "lake", "user": "anna"}), ""),
        (item("Pipeline", "new", {**REF, "job": "lake", "user": "eve"}), "there is no User eve"),
        (cluster(**{"num.partition": 3}), "unknown setting num.partition is ignored"),
    ],
)
def test_missing_or_shared_objects_are_warnings(api: InMemoryApi, new: dict[str, Any], expected: str) -> None:
    found = warnings(api, new)
    assert [expected in text for text in found] == [True] * bool(expected), found


def test_many_reviews_share_one_list(api: InMemoryApi) -> None:
    warnings(api, *(item("Topic", f"t{n}", REF) for n in range(50)))
    assert [call[:2] for call in api.calls].count(("list", "Topic")) == 1


def test_without_an_answer_of_the_api_server_a_review_has_its_own_warnings(api: InMemoryApi) -> None:
    api.fail = lambda verb, kind, name: ApiError(500, "InternalError", "no")
    topic = item("Topic", "new", {**REF, "replicas": 1, "config": {"min.insync.replicas": 2}})
    assert len(warnings(api, topic)) == 1


# ---- the certificate


class Files:
    """A replica's view of the certificate."""

    def __init__(self, api: InMemoryApi, folder: Path, configuration: str = "ottla") -> None:
        self.now_ms = 0
        self.kept = WebhookCertificate(
            api, NAMESPACE, SERVICE, configuration, folder, lambda: self.now_ms, os.urandom
        )

    def refresh(self) -> bytes:
        asyncio.run(self.kept.refresh())
        return self.kept.certificate_file.read_bytes()


def configured(api: InMemoryApi) -> InMemoryApi:
    webhook = {"name": "validate.ottla.dev", "clientConfig": {"service": {"name": SERVICE}}}
    api.items[CONFIGURATION, "ottla"] = {
        "kind": CONFIGURATION,
        "metadata": {"name": "ottla", "resourceVersion": "1"},
        "webhooks": [webhook],
    }
    return api


def bundle(api: InMemoryApi) -> bytes:
    found = api.items[CONFIGURATION, "ottla"]["webhooks"][0]["clientConfig"]
    assert found["service"] == {"name": SERVICE}
    return base64.b64decode(found["caBundle"])


def test_replicas_share_a_certificate_whose_authority_the_configuration_has(
    api: InMemoryApi, tmp_path: Path
) -> None:
    one, two = (Files(configured(api), tmp_path / name) for name in ("1", "2"))
    certificate = one.refresh()
    assert two.refresh() == certificate
    secret = api.items["Secret", SERVICE]
    assert base64.b64decode(secret["data"]["ca.crt"]) == bundle(api)
    assert (tmp_path / "1" / "tls.key").stat().st_mode & 0o077 == 0
    api.calls.clear()
    one.refresh()
    assert api.writes == []


def test_a_certificate_is_renewed_before_it_expires_under_the_same_authority(
    api: InMemoryApi, tmp_path: Path
) -> None:
    files = Files(configured(api), tmp_path)
    first, trusted = files.refresh(), bundle(api)
    files.now_ms = 304 * DAY_MS
    assert files.refresh() == first
    files.now_ms = 306 * DAY_MS
    assert files.refresh() != first
    assert bundle(api) == trusted


def test_a_lost_authority_and_a_changed_configuration_are_repaired(api: InMemoryApi, tmp_path: Path) -> None:
    files = Files(configured(api), tmp_path)
    files.refresh()
    old = bundle(api)
    configured(api)
    files.refresh()
    assert bundle(api) == old
    del api.items["Secret", SERVICE]
    files.refresh()
    assert bundle(api) != old


def test_a_certificate_of_others_is_only_read(api: InMemoryApi, tmp_path: Path) -> None:
    maker = Files(configured(api), tmp_path / "maker")
    certificate = maker.refresh()
    api.calls.clear()
    assert Files(api, tmp_path / "reader", configuration="").refresh() == certificate
    assert api.writes == []


def test_without_a_certificate_the_webhook_waits(api: InMemoryApi, tmp_path: Path) -> None:
    files = Files(api, tmp_path, configuration="")
    asyncio.run(files.kept.refresh())
    assert not files.kept.ready.is_set()


# ---- kopf's server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig(server.url))
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        load_config()
        yield server


@contextmanager
def serving(folder: Path, port: int) -> Iterator[None]:
    """The webhook on a port, as a replica that stands by serves it."""
    loop, stopping = asyncio.new_event_loop(), asyncio.Event()
    api = Api()
    certificate = WebhookCertificate(
        api, NAMESPACE, SERVICE, "ottla", folder, lambda: 1_800_000_000_000, os.urandom
    )
    reviewer = Reviewer(api, allow_sidecars=False, now_s=lambda: 1.0)
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(admission.serve(reviewer, certificate, port, stopping))
    )
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(60)
        assert not thread.is_alive()
        loop.close()
        api.close()


def asked(port: int, new: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer to an AdmissionReview, as soon as there is one."""
    resource = {"group": "ottla.dev", "version": "v1alpha1", "resource": "brokerclusters"}
    request = {
        "uid": "7", "resource": resource, "operation": "UPDATE" if old else "CREATE",
        "userInfo": {"username": "me"}, "object": new, "oldObject": old, "namespace": NAMESPACE,
    }  # fmt: skip
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    url = f"https://127.0.0.1:{port}/{admission.HANDLER}"
    for _ in range(600):
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"}),
                timeout=10,
                context=insecure,
            ) as answer:
                return dict(json.load(answer)["response"])
        except OSError:
            threading.Event().wait(0.05)  # until kopf has scanned the resources
    raise AssertionError("the webhook does not answer")


def test_kopf_serves_the_reviews(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(1)
    full = {"apiVersion": "ottla.dev/v1alpha1"}
    with serving(tmp_path / "files", port):
        refused = asked(port, {**cluster(**WRONG), **full})
        assert (refused["allowed"], refused["status"]) == (False, {"message": MISTAKE, "code": 422})
        warned = asked(port, {**cluster(**{"num.partition": 3}), **full}, {**cluster(), **full})
        assert warned["allowed"]
        assert "num.partition" in warned["warnings"][0]
        monkeypatch.setattr(admission, "parse_resource", lambda *_: 1 / 0)
        assert asked(port, {**cluster(**WRONG), **full})["allowed"], "a bug of the webhook refuses nothing"
