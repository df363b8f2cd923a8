"""A ZooKeeper that requires authentication, for brokers of both kinds.

Its plain port takes SASL, its secure port TLS with a client certificate, and SASL on top. `tree` is the
superuser, which sees every node with its ACL.
"""

from __future__ import annotations

from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_digest_acl_credential

from ottla.local.processes import free_port
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.metadata.config import BrokerConfig
from ottla.metadata.zookeeper_access import JAVA_OPTIONS, ZooKeeperAccess, java_properties
from tests.certificates import PASSWORD, Authority

USER = "kafka"
_SUPER = "super-of-the-test"
_SASL = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"

Acl = tuple[str, str, int]
"""Scheme, id, permissions."""


class SecuredZooKeeper:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = Authority()
        self.trusted = self.authority.write(directory / "authority.pem")
        self.broker_pem = self.authority.sign("broker").write_pem(directory / "broker.pem")
        self.broker_p12 = self.authority.sign("broker").write_pkcs12(directory / "broker.p12")
        server_pem = self.authority.sign("zookeeper").write_pem(directory / "server.pem")
        self.secure_port = free_port()
        settings = f"""\
secureClientPort={self.secure_port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
authProvider.sasl={_SASL}
authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider
enforce.auth.enabled=true
enforce.auth.schemes=sasl,x509,digest
ssl.clientAuth=need
ssl.enabledProtocols=TLSv1.2,TLSv1.3
ssl.keyStore.location={server_pem}
ssl.trustStore.location={self.trusted}
"""
        jaas = directory / "server.jaas"
        jaas.write_text(f'Server {{ {_MODULE} required user_{USER}="{PASSWORD}" user_other="{PASSWORD}"; }};')
        digest = make_digest_acl_credential("super", _SUPER)
        self.server = EmbeddedZooKeeper(
            directory / "zookeeper",
            settings=settings,
            jvm=(
                f"-Djava.security.auth.login.config={jaas}",
                f"-Dzookeeper.DigestAuthenticationProvider.superDigest={digest}",
            ),
        )
        self.tree = KazooClient(self.server.connect, auth_data={("digest", f"super:{_SUPER}")})

    def start(self) -> None:
        self.server.start()
        self.tree.start(timeout=60)

    def stop(self) -> None:
        self.tree.stop()
        self.tree.close()
        self.server.stop()

    @property
    def plain(self) -> str:
        return self.server.connect

    @property
    def secure(self) -> str:
        return f"127.0.0.1:{self.secure_port}"

    def tls(self, keystore: Path | None = None, trusted: Path | None = None) -> dict[str, str]:
        """Settings of a broker that presents this certificate."""
        return {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": str(keystore or self.broker_pem),
            "zookeeper.ssl.keystore.password": PASSWORD,
            "zookeeper.ssl.truststore.location": str(trusted or self.trusted),
        }

    def java_options(self, user: str = USER, password: str = PASSWORD) -> str:
        """JVM options of a broker that logs in as this user."""
        file = self.directory / f"{user}-{len(password)}.jaas"
        file.write_text(f'Client {{ {_MODULE} required username="{user}" password="{password}"; }};')
        return f"-Djava.security.auth.login.config={file}"

    def environment(self, options: str) -> list[str]:
        """The command prefix that sets the environment of `ottla broker`."""
        return ["env", f"{JAVA_OPTIONS}={options}"]

    def acls(self, chroot: str) -> dict[str, frozenset[Acl]]:
        """The ACLs of every node below the chroot, by its path there; the chroot itself is "/"."""
        found: dict[str, frozenset[Acl]] = {}
        waiting = [chroot]
        while waiting:
            path = waiting.pop()
            try:
                acls = self.tree.get_acls(path)[0]
                waiting += [f"{path}/{child}" for child in self.tree.get_children(path)]
            except NoNodeError:
                continue
            found[path.removeprefix(chroot) or "/"] = frozenset((a.id.scheme, a.id.id, a.perms) for a in acls)
        return found


def access(settings: dict[str, str], options: str = "") -> ZooKeeperAccess:
    """The ZooKeeper access that `ottla broker` derives from its settings and KAFKA_OPTS."""
    return ZooKeeperAccess.of(BrokerConfig.from_properties(settings), java_properties(options))
