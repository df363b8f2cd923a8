"""A ZooKeeper that requires authentication: a broker's credentials, and its errors without valid ones.

The oracle is ZooKeeper's own server: SASL on its plain port, TLS with client certificates on the other.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import re
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import JavaUnusable, ZooKeeperUnavailable
from ottla.metadata.kazoo_connection import TlsHandler
from ottla.metadata.store import StoreDenied, StoreUnavailable
from ottla.metadata.zookeeper import ZooKeeperStore
from ottla.metadata.zookeeper_access import ZooKeeperAccess
from tests.certificates import PASSWORD, Authority
from tests.judges.secured_zookeeper import USER, SecuredZooKeeper, access

pytestmark = pytest.mark.timeout(420)
WAIT_S = 90.0
SUBJECT = "CN=broker,OU=Tests,O=Ottla,C=SI"
_chroots = itertools.count()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    ensemble = SecuredZooKeeper(tmp_path_factory.mktemp("secured"))
    try:
        ensemble.start()
    except (JavaUnusable, ZooKeeperUnavailable) as missing:
        pytest.skip(f"ZooKeeper's server needs Java and PySpark's jars: {missing}")
    try:
        yield ensemble
    finally:
        ensemble.stop()


@pytest.mark.parametrize(
    ("secure", "keystore", "login", "ids"),
    [
        (False, "", True, {("sasl", USER)}),
        (True, "broker.pem", False, {("x509", SUBJECT)}),
        (True, "broker.p12", True, {("x509", SUBJECT), ("sasl", USER)}),
    ],
)
def test_nodes_belong_to_the_identity_that_zookeeper_has_authenticated(
    zookeeper: SecuredZooKeeper, secure: bool, keystore: str, login: bool, ids: set[tuple[str, str]]
) -> None:
    settings = {"zookeeper.set.acl": "true"}
    if secure:
        settings |= zookeeper.tls(zookeeper.directory / keystore)
    ours = access(settings, zookeeper.java_options() if login else "")
    chroot = f"/{next(_chroots)}"

    async def scenario() -> None:
        store = ZooKeeperStore(f"{zookeeper.secure if secure else zookeeper.plain}{chroot}", access=ours)
        await store.connect()
        try:
            await store.create("/config/users/anna", b"secret", make_parents=True)
        finally:
            await store.close()

    asyncio.run(scenario())
    creator = {(scheme, name, 31) for scheme, name in ids}
    readers = {("world", "anyone", 1)}
    assert zookeeper.acls(chroot) == {
        "/": creator | readers,
        "/config": creator | readers,
        "/config/users": creator,
        "/config/users/anna": creator,
    }


def test_a_refused_login_is_an_error_with_the_reason(zookeeper: SecuredZooKeeper) -> None:
    expired = zookeeper.authority.sign("broker", ends=datetime.timedelta(hours=-1))
    expired_pem = expired.write_pem(zookeeper.directory / "expired.pem")
    other_authority = Authority("Somebody else")
    foreign_pem = other_authority.sign("broker").write_pem(zookeeper.directory / "strange.pem")
    other_ca = other_authority.write(zookeeper.directory / "other.pem")
    secure, plain = zookeeper.secure, zookeeper.plain
    nothing = zookeeper.tls()
    del nothing["zookeeper.ssl.keystore.location"]
    attempts = [
        (
            plain,
            access({}, zookeeper.java_options(password="falsch")),
            "rejected the login: user kafka: wrong",
        ),
        (plain, access({}, zookeeper.java_options(user="nobody")), "rejected the login: user nobody: wrong"),
        (plain, access({}), "requires SASL authentication"),
        (secure, access(zookeeper.tls(trusted=other_ca)), "its certificate is not trusted"),
        (secure, access(zookeeper.tls(expired_pem)), "rejected the client certificate: certificate unknown"),
        (secure, access(zookeeper.tls(foreign_pem)), "rejected the client certificate: certificate unknown"),
        (secure, access(nothing), "rejected the client certificate: bad certificate"),
        (secure, access({}), f"no response from ZooKeeper at {secure}: {secure}: "),
    ]

    async def attempt(connect: str, ours: ZooKeeperAccess) -> StoreUnavailable:
        store = ZooKeeperStore(f"{connect}/kafka", 20_000, 10_000, ours)
        with pytest.raises(StoreUnavailable) as refused:
            await store.connect()
        return refused.value

    async def all_attempts() -> list[StoreUnavailable]:
        return await asyncio.gather(*(attempt(connect, ours) for connect, ours, _ in attempts))

    found = asyncio.run(all_attempts())
    for error, (connect, _, says) in zip(found, attempts, strict=True):
        assert re.search(says, str(error)), (connect, says, str(error))
    assert [isinstance(error, StoreDenied) for error in found] == [True] * 3 + [False] * 5


def test_another_users_nodes_are_denied_at_once(zookeeper: SecuredZooKeeper) -> None:
    chroot = f"/{next(_chroots)}"

    async def scenario() -> None:
        settings = {"zookeeper.set.acl": "true"}
        owner = ZooKeeperStore(
            f"{zookeeper.plain}{chroot}", access=access(settings, zookeeper.java_options())
        )
        other = ZooKeeperStore(
            f"{zookeeper.plain}{chroot}", access=access(settings, zookeeper.java_options(user="other"))
        )
        await owner.connect()
        await other.connect()
        try:
            await owner.create("/config/users/anna", b"secret", make_parents=True)
            await owner.create("/topic", b"open")
            assert (await other.get("/topic") or (b"",))[0] == b"open"
            for denied in (other.get("/config/users/anna"), other.set("/topic", b"")):
                with pytest.raises(StoreDenied, match="denied by the node's ACL"):
                    await asyncio.wait_for(denied, WAIT_S)
        finally:
            await owner.close()
            await other.close()

    asyncio.run(scenario())


def test_session_and_watches_continue_under_tls_after_a_restart_of_zookeeper(
    zookeeper: SecuredZooKeeper,
) -> None:
    ours = access({"zookeeper.set.acl": "true"} | zookeeper.tls(), zookeeper.java_options())
    chroot = f"/{next(_chroots)}"

    async def scenario() -> None:
        store = ZooKeeperStore(f"{zookeeper.secure}{chroot}", 60_000, access=ours)
        await store.connect()
        try:
            woken = asyncio.Event()
            await store.create("/mine", ephemeral=True)
            await store.watch_children("/", woken.set)
            session = store.session_id
            # Not in a thread: the server would end with the thread that started it.
            zookeeper.server.stop()
            zookeeper.server.start()
            await asyncio.wait_for(woken.wait(), WAIT_S)
            stat = await store.exists("/mine")
            assert stat is not None
            assert stat.ephemeral_owner == store.session_id == session
            woken.clear()
            await asyncio.to_thread(zookeeper.tree.retry, zookeeper.tree.create, f"{chroot}/child")
            await asyncio.wait_for(woken.wait(), WAIT_S)
            assert await store.children("/") == ["child", "mine"]
        finally:
            await store.close()

    asyncio.run(scenario())


def test_responses_in_openssls_buffer_are_read_at_once(tmp_path: Path) -> None:
    """Several in one record of TLS, as proxies send them: what nobody has fetched shows on no descriptor."""
    authority = Authority()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.sign("zookeeper").write_pem(tmp_path / "server.pem"))
    settings = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "ClientCnxnSocketNetty",
        "zookeeper.ssl.truststore.location": str(authority.write(tmp_path / "authority.pem")),
    }
    tls = access(settings).tls
    assert tls is not None
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:

        def serve() -> ssl.SSLSocket:
            accepted = server.wrap_socket(listener.accept()[0], server_side=True)
            accepted.sendall(b"onetwo")
            return accepted

        serving = threads.submit(serve)
        handler = TlsHandler(tls)
        ours = handler.create_connection(listener.getsockname(), "localhost", 60)
        with ours, serving.result(60):
            assert ours.recv(3) == b"one"
            assert handler.select([ours], [], [], 0) == ([ours], [], [])
            assert ours.recv(3) == b"two"
            assert handler.select([ours], [], [], 0) == ([], [], [])


def test_a_refused_broker_logs_the_reason_and_exits(zookeeper: SecuredZooKeeper) -> None:
    options = zookeeper.java_options(password="falsch")
    broker = BrokerProcess(
        1, zookeeper.directory / "refused", free_port(), prefix=zookeeper.environment(options)
    )
    broker.write_properties(f"{zookeeper.plain}/refused", {})
    broker.start()
    try:
        assert wait_until(lambda: not broker.running, timeout_s=WAIT_S)
        assert broker.exit_code == 1
        said = broker.log_tail()
        assert "broker 1 cannot start: the metadata store: /: 127.0.0.1:" in said
        assert "rejected the login: user kafka" in said
        assert PASSWORD not in said
        assert "falsch" not in said
    finally:
        broker.kill()
