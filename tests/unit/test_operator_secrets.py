"""The two implementations of the Secrets interface: their common behaviour, and that of each."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from ottla_operator.kubernetes.api import ApiError
from ottla_operator.kubernetes.secrets import KubernetesSecrets
from ottla_operator.planning.observed import Secret
from ottla_operator.platform.interfaces import Secrets, StepFailed
from ottla_operator.platform.local_security import SecretFiles
from ottla_operator.resources import AnyResource
from ottla_operator.resources.loading import parse_resource
from tests.worlds.kubernetes_simulation import NAMESPACE, InMemoryApi

DATA = {"password": b"a word", "other": b"\x00\xff"}


class Place:
    """A Secrets implementation, and a way to write Secrets of other owners."""

    def __init__(self, secrets: Secrets, by_hand: Callable[[str, Mapping[str, bytes]], None]) -> None:
        self._secrets = secrets
        self.by_hand = by_hand

    def read(self, *names: str) -> Mapping[str, Secret]:
        return asyncio.run(self._secrets.read(names))

    def put(self, owner: AnyResource, name: str, data: Mapping[str, bytes]) -> None:
        self.read(name)
        asyncio.run(self._secrets.put(owner, name, data))

    def delete(self, owner: AnyResource, name: str) -> None:
        self.read(name)
        asyncio.run(self._secrets.delete(owner, name))


@pytest.fixture
def api() -> InMemoryApi:
    return InMemoryApi()


@pytest.fixture(params=["files", "kubernetes"])
def place(request: pytest.FixtureRequest, tmp_path: Path, api: InMemoryApi) -> Place:
    def write(name: str, data: Mapping[str, bytes]) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        for entry, value in data.items():
            (tmp_path / name / entry).write_bytes(value)

    def create(name: str, data: Mapping[str, bytes]) -> None:
        encoded = {entry: base64.b64encode(value).decode() for entry, value in data.items()}
        known = api.items.get(("Secret", name), {"metadata": {}})
        api.put("Secret", name, {**known, "data": encoded})

    if request.param == "files":
        return Place(SecretFiles(tmp_path), write)
    return Place(KubernetesSecrets(api, NAMESPACE, "demo"), create)


def user(name: str) -> AnyResource:
    metadata = {"name": name, "uid": f"uid-of-{name}"}
    found, problems = parse_resource("User", metadata, {"clusterRef": {"name": "demo"}})
    assert found is not None, problems
    return found


def test_a_secret_is_read_with_its_owner(place: Place) -> None:
    place.put(user("alice"), "alice", DATA)
    found = place.read("alice", "missing")
    assert set(found) == {"alice"}
    assert (found["alice"].data, found["alice"].owner) == (DATA, "User/alice")


def test_the_version_changes_with_each_write(place: Place) -> None:
    place.put(user("alice"), "alice", DATA)
    first = place.read("alice")["alice"].version
    assert first == place.read("alice")["alice"].version
    place.put(user("alice"), "alice", {**DATA, "password": b"another"})
    second = place.read("alice")["alice"].version
    place.by_hand("alice", {**DATA, "password": b"a third"})
    assert len({first, second, place.read("alice")["alice"].version}) == 3


def test_put_replaces_the_whole_content_of_a_secret(place: Place) -> None:
    place.put(user("alice"), "alice", DATA)
    place.put(user("alice"), "alice", {"user.key": b"k"})
    assert place.read("alice")["alice"].data == {"user.key": b"k"}


def test_secrets_of_other_owners_are_neither_written_nor_deleted(place: Place) -> None:
    place.by_hand("alice", DATA)
    place.put(user("bob"), "bob", DATA)
    assert place.read("alice")["alice"].owner == ""
    for name in ("alice", "bob"):
        with pytest.raises(StepFailed, match="User/alice does not own it"):
            place.put(user("alice"), name, {"password": b"mine"})
        place.delete(user("alice"), name)
        assert place.read(name)[name].data == DATA


def test_a_secret_is_deleted(place: Place) -> None:
    place.put(user("alice"), "alice", DATA)
    place.delete(user("alice"), "alice")
    place.delete(user("alice"), "alice")
    assert place.read("alice") == {}


def test_files_are_private_and_deleted_with_the_resource(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path / "secrets")
    place = Place(files, lambda name, data: None)
    place.put(user("alice"), "alice", DATA)
    place.put(user("bob"), "bob", DATA)
    assert (tmp_path / "secrets" / "alice").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "secrets" / "alice").iterdir()} == {0o600}
    asyncio.run(files.release(user("alice")))
    assert set(place.read("alice", "bob")) == {"bob"}


def test_kubernetes_secrets_are_listed_by_label_and_have_an_owner_reference(api: InMemoryApi) -> None:
    secrets = KubernetesSecrets(api, NAMESPACE, "demo")
    place = Place(secrets, lambda name, data: None)
    place.put(user("alice"), "alice", DATA)
    place.put(user("bob"), "bob", DATA)
    before = len(api.calls)
    assert set(place.read("alice", "bob")) == {"alice", "bob"}
    assert api.calls[before:] == [("list", "Secret", "")]
    (owner,) = api.items["Secret", "alice"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("User", "alice", "uid-of-alice")


def test_a_kubernetes_secret_created_concurrently_is_not_taken_over(api: InMemoryApi) -> None:
    secrets = KubernetesSecrets(api, NAMESPACE, "demo")

    def put(names: Collection[str] = ("alice",)) -> None:
        asyncio.run(secrets.put(user("alice"), "alice", DATA))

    asyncio.run(secrets.read(["alice"]))
    api.put("Secret", "alice", {"data": {}})
    with pytest.raises(StepFailed) as refused:
        put()
    assert refused.value.reason == "SecretConflict"
    del api.items["Secret", "alice"]
    api.fail = lambda verb, kind, name: ApiError(500, "Sick", "no") if verb == "create" else None
    with pytest.raises(StepFailed) as failed:
        put()
    assert (failed.value.reason, failed.value.message) == ("ApplyFailed", "Secret alice: no")
