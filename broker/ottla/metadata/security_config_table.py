"""The table of security settings of a broker in Kafka 3.9: TLS, SASL, delegation tokens, ZooKeeper.

Part of `broker_config_table`. Names, types, defaults, ranges and dynamic update modes are those of Kafka
3.9.1. Most can be set for one listener, or for one mechanism of it, with a prefix: see `listener_security`.
"""

from __future__ import annotations

from ottla.metadata.config_def import config_table, inert_config_table

# The columns are those of `config_table`.
_IMPLEMENTED = """
    connection.failed.authentication.delay.ms INT 100 >=0
        | Pause before the connection of a failed authentication is closed.
    connections.max.reauth.ms LONG 0
        | Longest session of a SASL client before it must authenticate again; 0: no limit.
    delegation.token.expiry.check.interval.ms LONG 3600000 >=1
        | Interval of the check for expired delegation tokens.
    delegation.token.expiry.time.ms LONG 86400000 >=1 | Validity of a delegation token until it is renewed.
    delegation.token.master.key PASSWORD - | Former name of delegation.token.secret.key.
    delegation.token.max.lifetime.ms LONG 604800000 >=1
        | Age beyond which a delegation token cannot be renewed.
    delegation.token.secret.key PASSWORD -
        | The secret that signs delegation tokens; the same on all brokers. Without it there are no tokens.
    *principal.builder.class CLASS org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
        | Derives the principal from a certificate or a user: Kafka's default, or a Python class
        | (module.Class).
    *sasl.enabled.mechanisms LIST GSSAPI
        | Mechanisms of a SASL listener: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.
    *sasl.jaas.config PASSWORD -
        | The login of a mechanism with its options and users; only with the prefix of listener and mechanism.
    *sasl.mechanism.inter.broker.protocol STRING GSSAPI | The mechanism by which brokers log in at each other.
    sasl.login.callback.handler.class CLASS -
        | Obtains OAuth tokens for connections between brokers; one of Kafka's own handlers.
    sasl.login.connect.timeout.ms INT - | Time-out of a connection to the OAuth server.
    sasl.login.read.timeout.ms INT - | Time-out of a response of the OAuth server.
    *sasl.login.refresh.buffer.seconds SHORT 300 | Least time between the refresh of a token and its expiry.
    *sasl.login.refresh.min.period.seconds SHORT 60 | Least time between two refreshes of a token.
    *sasl.login.refresh.window.factor DOUBLE 0.8 | Share of a token's lifetime after which it is refreshed.
    *sasl.login.refresh.window.jitter DOUBLE 0.05 | Random part that is added to this share.
    sasl.login.retry.backoff.max.ms LONG 10000 | Longest pause between requests for a token.
    sasl.login.retry.backoff.ms LONG 100 | First pause between requests for a token.
    sasl.oauthbearer.clock.skew.seconds INT 30
        | Allowed difference of the clocks when the times of a token are checked.
    sasl.oauthbearer.expected.audience LIST - | The token's audience must be one of these.
    sasl.oauthbearer.expected.issuer STRING - | The token's issuer must be this one.
    sasl.oauthbearer.jwks.endpoint.refresh.ms LONG 3600000 | Age at which the key set is fetched again.
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms LONG 10000
        | Longest pause between fetches of the key set that fail.
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms LONG 100
        | First pause between fetches of the key set that fail.
    sasl.oauthbearer.jwks.endpoint.url STRING -
        | The key set that verifies tokens: an https, http or file URL. Without it tokens are not verified.
    sasl.oauthbearer.scope.claim.name STRING scope | The claim with the token's scope.
    sasl.oauthbearer.sub.claim.name STRING sub | The claim with the principal's name.
    sasl.oauthbearer.token.endpoint.url STRING - | Where brokers obtain their own tokens.
    sasl.server.callback.handler.class CLASS -
        | Verifies the credentials of a mechanism; one of Kafka's own handlers.
    sasl.server.max.receive.size INT 524288 | Largest message of a client during authentication.
    *ssl.cipher.suites LIST "" | Cipher suites of TLS; empty: those of OpenSSL.
    *ssl.client.auth STRING none required,requested,none
        | Whether clients must (required) or may (requested) have a certificate.
    *ssl.enabled.protocols LIST TLSv1.2,TLSv1.3 | Versions of TLS.
    *ssl.endpoint.identification.algorithm STRING https
        | https: the certificate of another broker must have its host name; empty: not checked.
    *ssl.engine.factory.class CLASS - | Java classes for TLS; rejected for a listener with TLS.
    *ssl.key.password PASSWORD - | Password of the private key.
    *ssl.keystore.certificate.chain PASSWORD - | The certificates of the key as PEM text.
    *ssl.keystore.key PASSWORD - | The private key as PEM text.
    *ssl.keystore.location STRING - | File with private key and certificates.
    *ssl.keystore.password PASSWORD - | Password of this file.
    *ssl.keystore.type STRING JKS | PEM or PKCS12. JKS (the default) reads PKCS12 files only.
    ssl.principal.mapping.rules STRING DEFAULT
        | Rules that derive the principal from the distinguished name of a certificate.
    *ssl.truststore.certificates PASSWORD - | The trusted certificates as PEM text.
    *ssl.truststore.location STRING - | File with the trusted certificates.
    *ssl.truststore.password PASSWORD - | Password of this file.
    *ssl.truststore.type STRING JKS | PEM or PKCS12. JKS (the default) reads PKCS12 files only.
"""
# Settings of Java's security providers and of Kerberos, with the reason why they have no effect.
_WITHOUT_EFFECT = """
    sasl.client.callback.handler.class CLASS - | Java classes.
    *sasl.kerberos.kinit.cmd STRING /usr/bin/kinit | Kerberos is not supported.
    *sasl.kerberos.min.time.before.relogin LONG 60000 | Kerberos is not supported.
    *sasl.kerberos.principal.to.local.rules LIST DEFAULT | Kerberos is not supported.
    *sasl.kerberos.service.name STRING - | Kerberos is not supported.
    *sasl.kerberos.ticket.renew.jitter DOUBLE 0.05 | Kerberos is not supported.
    *sasl.kerberos.ticket.renew.window.factor DOUBLE 0.8 | Kerberos is not supported.
    sasl.login.class CLASS - | Java classes.
    ssl.allow.dn.changes BOOLEAN false | a replaced key store may have another distinguished name.
    ssl.allow.san.changes BOOLEAN false | a replaced key store may have other alternative names.
    *ssl.keymanager.algorithm STRING SunX509 | Java's key managers.
    *ssl.protocol STRING TLSv1.3 | ssl.enabled.protocols has the versions of TLS.
    *ssl.provider STRING - | Java's security providers.
    *ssl.secure.random.implementation STRING - | Java's random numbers.
    *ssl.trustmanager.algorithm STRING PKIX | Java's trust managers.
"""

_ZOOKEEPER = """
    password.encoder.cipher.algorithm STRING AES/CBC/PKCS5Padding
        | Cipher of passwords among the dynamic settings.
    password.encoder.iterations INT 4096 >=1024 | Iterations of the derivation of the key of that cipher.
    password.encoder.key.length INT 128 >=8 | Bits of that key.
    password.encoder.keyfactory.algorithm STRING - | Derivation of that key; PBKDF2WithHmacSHA512 by default.
    password.encoder.old.secret PASSWORD -
        | The former secret; passwords are encrypted with the new one at the start.
    password.encoder.secret PASSWORD -
        | The secret that encrypts passwords among the dynamic settings. Without it they are rejected.
    zookeeper.clientCnxnSocket STRING - | ZooKeeper's Netty client, which Kafka requires with TLS.
    zookeeper.set.acl BOOLEAN false | Nodes that the broker creates have an ACL.
    zookeeper.ssl.cipher.suites LIST - | Cipher suites of TLS to ZooKeeper.
    zookeeper.ssl.client.enable BOOLEAN false | Connect to ZooKeeper by TLS.
    zookeeper.ssl.crl.enable BOOLEAN false | Check revocation lists; true is rejected.
    zookeeper.ssl.enabled.protocols LIST - | Versions of TLS to ZooKeeper.
    zookeeper.ssl.endpoint.identification.algorithm STRING HTTPS
        | HTTPS: ZooKeeper's certificate must have its host name; empty: not checked.
    zookeeper.ssl.keystore.location STRING -
        | File with the broker's private key and certificates for ZooKeeper.
    zookeeper.ssl.keystore.password PASSWORD - | Password of this file.
    zookeeper.ssl.keystore.type STRING - | PEM or PKCS12; by default the file's ending decides.
    zookeeper.ssl.ocsp.enable BOOLEAN false | Check revocation by OCSP; true is rejected.
    zookeeper.ssl.protocol STRING TLSv1.2 | Version of TLS to ZooKeeper, if no versions are enabled by name.
    zookeeper.ssl.truststore.location STRING -
        | File with the certificates that ZooKeeper's must be signed by.
    zookeeper.ssl.truststore.password PASSWORD - | Password of this file.
    zookeeper.ssl.truststore.type STRING - | PEM or PKCS12; by default the file's ending decides.
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


SECURITY_CONFIGS = tuple(config_table(_IMPLEMENTED))
INERT_SECURITY_CONFIGS = tuple(inert_config_table(_WITHOUT_EFFECT))
ZOOKEEPER_CONFIGS = tuple(config_table(_ZOOKEEPER))
NAMES = frozenset(key.name for key in (*SECURITY_CONFIGS, *INERT_SECURITY_CONFIGS))
"""All settings that can have a listener's prefix."""
