"""The table of security settings of a broker in Kafka 3.9: TLS, SASL, delegation tokens, ZooKeeper.

Part of `broker_config_table`. Names, types, defaults, ranges and dynamic update modes are those of Kafka
3.9.1. Most can be set for one listener, or for one mechanism of it, with a prefix: see `listener_security`.
"""

from __future__ import annotations

from ottla.metadata.config_def import config_table

# The columns are those of `config_table`.
_IMPLEMENTED = """
    connection.failed.authentication.delay.ms INT 100 >=0
    connections.max.reauth.ms LONG 0
    delegation.token.expiry.check.interval.ms LONG 3600000 >=1
    delegation.token.expiry.time.ms LONG 86400000 >=1
    delegation.token.master.key PASSWORD -
    delegation.token.max.lifetime.ms LONG 604800000 >=1
    delegation.token.secret.key PASSWORD -
    *principal.builder.class CLASS org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
    *sasl.enabled.mechanisms LIST GSSAPI
    *sasl.jaas.config PASSWORD -
    *sasl.mechanism.inter.broker.protocol STRING GSSAPI
    sasl.login.callback.handler.class CLASS -
    sasl.login.connect.timeout.ms INT -
    sasl.login.read.timeout.ms INT -
    *sasl.login.refresh.buffer.seconds SHORT 300
    *sasl.login.refresh.min.period.seconds SHORT 60
    *sasl.login.refresh.window.factor DOUBLE 0.8
    *sasl.login.refresh.window.jitter DOUBLE 0.05
    sasl.login.retry.backoff.max.ms LONG 10000
    sasl.login.retry.backoff.ms LONG 100
    sasl.oauthbearer.clock.skew.seconds INT 30
    sasl.oauthbearer.expected.audience LIST -
    sasl.oauthbearer.expected.issuer STRING -
    sasl.oauthbearer.jwks.endpoint.refresh.ms LONG 3600000
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms LONG 10000
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms LONG 100
    sasl.oauthbearer.jwks.endpoint.url STRING -
    sasl.oauthbearer.scope.claim.name STRING scope
    sasl.oauthbearer.sub.claim.name STRING sub
    sasl.oauthbearer.token.endpoint.url STRING -
    sasl.server.callback.handler.class CLASS -
    sasl.server.max.receive.size INT 524288
    *ssl.cipher.suites LIST ""
    *ssl.client.auth STRING none required,requested,none
    *ssl.enabled.protocols LIST TLSv1.2,TLSv1.3
    *ssl.endpoint.identification.algorithm STRING https
    *ssl.engine.factory.class CLASS -
    *ssl.key.password PASSWORD -
    *ssl.keystore.certificate.chain PASSWORD -
    *ssl.keystore.key PASSWORD -
    *ssl.keystore.location STRING -
    *ssl.keystore.password PASSWORD -
    *ssl.keystore.type STRING JKS
    ssl.principal.mapping.rules STRING DEFAULT
    *ssl.truststore.certificates PASSWORD -
    *ssl.truststore.location STRING -
    *ssl.truststore.password PASSWORD -
    *ssl.truststore.type STRING JKS
"""
# Settings of Java's security providers and of Kerberos.
_WITHOUT_EFFECT = """
    sasl.client.callback.handler.class CLASS -
    *sasl.kerberos.kinit.cmd STRING /usr/bin/kinit
    *sasl.kerberos.min.time.before.relogin LONG 60000
    *sasl.kerberos.principal.to.local.rules LIST DEFAULT
    *sasl.kerberos.service.name STRING -
    *sasl.kerberos.ticket.renew.jitter DOUBLE 0.05
    *sasl.kerberos.ticket.renew.window.factor DOUBLE 0.8
    sasl.login.class CLASS -
    ssl.allow.dn.changes BOOLEAN false
    ssl.allow.san.changes BOOLEAN false
    *ssl.keymanager.algorithm STRING SunX509
    *ssl.protocol STRING TLSv1.3
    *ssl.provider STRING -
    *ssl.secure.random.implementation STRING -
    *ssl.trustmanager.algorithm STRING PKIX
"""

_ZOOKEEPER = """
    password.encoder.cipher.algorithm STRING AES/CBC/PKCS5Padding
    password.encoder.iterations INT 4096 >=1024
    password.encoder.key.length INT 128 >=8
    password.encoder.keyfactory.algorithm STRING -
    password.encoder.old.secret PASSWORD -
    password.encoder.secret PASSWORD -
    zookeeper.clientCnxnSocket STRING -
    zookeeper.set.acl BOOLEAN false
    zookeeper.ssl.cipher.suites LIST -
    zookeeper.ssl.client.enable BOOLEAN false
    zookeeper.ssl.crl.enable BOOLEAN false
    zookeeper.ssl.enabled.protocols LIST -
    zookeeper.ssl.endpoint.identification.algorithm STRING HTTPS
    zookeeper.ssl.keystore.location STRING -
    zookeeper.ssl.keystore.password PASSWORD -
    zookeeper.ssl.keystore.type STRING -
    zookeeper.ssl.ocsp.enable BOOLEAN false
    zookeeper.ssl.protocol STRING TLSv1.2
    zookeeper.ssl.truststore.location STRING -
    zookeeper.ssl.truststore.password PASSWORD -
    zookeeper.ssl.truststore.type STRING -
"""

STORE_SETTINGS = frozenset(
    (
        *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password", "ssl.key.password"),
        *("ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.type"),
        *("ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.certificates"),
    )
)
"""Settings of a listener that can change while it is open (SslConfigs.RECONFIGURABLE_CONFIGS)."""

BY_MECHANISM = (
    *("connections.max.reauth.ms", "sasl.jaas.config", "sasl.login.callback.handler.class"),
    *("sasl.login.class", "sasl.server.callback.handler.class"),
)
"""Settings that can have a mechanism's prefix (DynamicBrokerConfig.ListenerMechanismConfigs)."""


SECURITY_CONFIGS = tuple(config_table(_IMPLEMENTED, "Security; see Kafka's documentation."))
INERT_SECURITY_CONFIGS = tuple(config_table(_WITHOUT_EFFECT, "Accepted, and without effect in Ottla."))
ZOOKEEPER_CONFIGS = tuple(config_table(_ZOOKEEPER, "Of ZooKeeper; see Kafka's documentation."))
NAMES = frozenset(key.name for key in (*SECURITY_CONFIGS, *INERT_SECURITY_CONFIGS))
"""All settings that can have a listener's prefix."""
