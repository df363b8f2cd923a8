"""`ottla console`: serves the console. Ends in order on SIGTERM and SIGINT."""

from __future__ import annotations

import gc
import logging
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import click
import uvicorn

from ottla import logs
from ottla.client.core.config import AdminConfig, ConfigError
from ottla.metadata.config_def import ConfigError as PropertiesError
from ottla.metadata.config_def import read_properties
from ottla.security.stores import StoreProblem
from ottla.security.tls import TlsSettings, client_context
from ottla_console.app import Console
from ottla_console.cluster.credentials import Password
from ottla_console.cluster.identity_provider import trust_of
from ottla_console.cluster.schema_decoder import SchemaDecoder
from ottla_console.registry import PAGES
from ottla_console.settings import (
    BrokerClusterName,
    Cluster,
    Login,
    Mask,
    Registry,
    Settings,
    SettingsError,
    cluster_of,
    read_clusters,
    status_url,
)
from ottla_console.views import json_paths
from ottla_console.web.client_certificates import CertifyingProtocol

log = logging.getLogger(__name__)

GRACE_S: Final = 3
GC_THRESHOLDS: Final = (50_000, 20, 100)
"""A snapshot of a large cluster has hundreds of thousands of objects and no cycles. With Python's default,
the garbage collector goes through all of them several times in each collection, and pages wait for it: with
10,000 topics the loop is held for up to 0.33 s of CPU time, and for 0.12 s with these."""
DEFAULT_NAME: Final = "kafka"
DEFAULT_BOOTSTRAP: Final = "localhost:9092"


@click.command(short_help="Serve the web console for clusters.")
@click.option(
    "-b",
    "--bootstrap",
    envvar="OTTLA_BOOTSTRAP",
    show_envvar=True,
    metavar="HOST:PORT[,…]",
    help="Bootstrap servers. Default: those of the command config, or localhost:9092.",
)
@click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="OTTLA_COMMAND_CONFIG",
    show_envvar=True,
    help="Properties of Kafka's clients: bootstrap.servers, security.protocol, sasl.*, ssl.*.",
)
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="The cluster's name on the pages.")
@click.option(
    "--login",
    type=click.Choice([each.value for each in Login]),
    help="password: each person logs in with a user of the cluster, the default with SASL. certificate: each "
    "acts as the principal of the browser's client certificate. oidc: each logs in at a provider, which "
    "--config has. shared: all act as the user of the command "
    "config. none: the cluster has no SASL.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML with several clusters, in place of the options above (docs/guides/console.md).",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0: any free port."
)
@click.option(
    "--writes/--read-only", default=False, show_default=True, help="Whether pages may change clusters."
)
@click.option(
    "--values/--no-values",
    default=True,
    show_default=True,
    help="Whether pages may show the content of records.",
)
@click.option(
    "--schema-registry", "registry", metavar="URL", help="Decodes records: Avro, Protobuf, JSON Schema."
)
@click.option(
    "--mask",
    "masks",
    multiple=True,
    metavar="JSONPATH",
    help="A field of keys and values that pages do not show: $.card.number, $..email.",
)
@click.option(
    "--kubernetes",
    metavar="NAMESPACE/NAME",
    help="The cluster's BrokerCluster: shows conditions, rolls and Events (needs the extra operator).",
)
@click.option(
    "--up",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The data folder of the `ottla up` that runs the cluster: shows its conditions and rolls.",
)
@click.option(
    "--pipeline",
    "pipelines",
    multiple=True,
    metavar="URL",
    help="http://HOST:PORT, the status port of a job of ottla-pipeline; may be repeated.",
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="PEM: serve HTTPS.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="PEM.")
@click.option(
    "--tls-client-ca",
    type=click.Path(exists=True, dir_okay=False),
    help="PEM: the authorities of client certificates, which browsers are asked for (--login certificate).",
)
@click.option("--https-proxy", is_flag=True, help="Browsers reach the console by HTTPS, at a proxy.")
@click.option("--allowed-host", "hosts", multiple=True, metavar="NAME", help="A name of the console in URLs.")
@click.option(
    "--idle-minutes",
    default=30,
    show_default=True,
    type=click.IntRange(min=1),
    help="A session ends after this.",
)
def console(
    bootstrap: str | None,
    command_config: Path | None,
    name: str,
    login: str | None,
    file: Path | None,
    host: str,
    port: int,
    writes: bool,
    values: bool,
    registry: str | None,
    masks: tuple[str, ...],
    kubernetes: str | None,
    up: Path | None,
    pipelines: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    https_proxy: bool,
    hosts: tuple[str, ...],
    idle_minutes: int,
) -> None:
    """Serve the web console: brokers, topics, groups of any Kafka-compatible cluster in the browser.

    It shows and changes what the brokers' ACLs permit to the user who has logged in, and changes nothing
    without --writes.
    """
    logs.configure()
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if tls_client_ca is not None and tls_cert is None:
        raise click.UsageError("--tls-client-ca needs --tls-cert and --tls-key")
    of_one = (bootstrap, command_config, login, registry, masks, kubernetes, up, pipelines)
    if file is not None and any(of_one):
        raise click.UsageError(
            "--config replaces --bootstrap, --command-config, --login, --schema-registry, --mask, "
            "--kubernetes, --up and --pipeline"
        )
    try:
        if file is not None:
            clusters = read_clusters(file)
        else:
            one = _one_cluster(name, bootstrap, command_config, login)
            clusters = (
                replace(
                    one,
                    registry=Registry(registry) if registry else None,
                    masks=(Mask(masks),) if masks else (),
                    kubernetes=BrokerClusterName.parse(kubernetes) if kubernetes else None,
                    up=up,
                    pipelines=_status_urls(pipelines),
                ),
            )
        for cluster in clusters:
            _check(cluster)
            if cluster.login is Login.CERTIFICATE and tls_client_ca is None:
                raise SettingsError(
                    f"cluster {cluster.name}: login=certificate needs --tls-cert, --tls-key, --tls-client-ca"
                )
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    tls = tls_cert is not None
    settings = Settings(
        clusters,
        writes,
        values,
        tls=tls or https_proxy,
        hosts=frozenset({host.lower(), *(each.lower() for each in hosts)}),
        idle_s=60.0 * idle_minutes,
    )
    _warn(settings, host, tls=settings.tls)
    config = uvicorn.Config(
        Console(settings, PAGES).app,
        host=host,
        port=port,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        ssl_ca_certs=tls_client_ca,
        ssl_cert_reqs=ssl.CERT_NONE if tls_client_ca is None else ssl.CERT_OPTIONAL,
        http=CertifyingProtocol,
        access_log=False,
        log_config=None,
        log_level="warning",  # uvicorn's; the line below says that the console serves
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=64 * 1024,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(config, "https" if tls else "http")
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with suppress(KeyboardInterrupt):  # Ctrl-C, which uvicorn raises again after an orderly end
        server.run()
    if not server.started:
        sys.exit(1)


class _Server(uvicorn.Server):
    """Prints the address once it serves."""

    def __init__(self, config: uvicorn.Config, scheme: str) -> None:
        super().__init__(config)
        self._scheme = scheme

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        try:
            await super().startup(sockets)  # type: ignore[arg-type]
        except SystemExit:  # uvicorn has logged why it cannot listen
            click.echo("ottla console: --port chooses another port (0: any free one)", err=True)
            raise
        for server in self.servers if self.started else ():
            for socket in server.sockets:
                address, port = socket.getsockname()[:2]
                shown = f"[{address}]" if ":" in address else address
                click.echo(f"console={self._scheme}://{shown}:{port}/")


def _one_cluster(name: str, bootstrap: str | None, file: Path | None, login: str | None) -> Cluster:
    try:
        properties = {} if file is None else read_properties(file)
    except PropertiesError as error:
        raise SettingsError(str(error)) from None
    servers = bootstrap or properties.get("bootstrap.servers") or DEFAULT_BOOTSTRAP
    return cluster_of(name, servers, properties, login)


def _status_urls(given: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(map(status_url, given))
    except ValueError as error:
        raise SettingsError(f"--pipeline {error}") from None


def _check(cluster: Cluster) -> None:
    """Report invalid addresses and properties before anything is served. Raises SettingsError."""
    if cluster.kubernetes is not None and cluster.up is not None:
        raise SettingsError(f"cluster {cluster.name}: kubernetes and up exclude each other")
    if cluster.kubernetes is not None and find_spec("kubernetes") is None:
        raise SettingsError(f"cluster {cluster.name}: kubernetes needs pip install 'ottla[console,operator]'")
    trial: Mapping[str, object] = {}
    if cluster.login is Login.PASSWORD:
        trial = Password(cluster.mechanisms[0], "user", "password").properties()
    if cluster.login is Login.OIDC:
        trial = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauth.token.provider": lambda: ""}
    try:
        if cluster.oidc is not None:
            client_context(TlsSettings.of(trust_of(cluster.oidc).get))
        AdminConfig.of({"bootstrap.servers": cluster.bootstrap, **cluster.properties, **trial})
        if cluster.registry is not None:
            SchemaDecoder(cluster.registry)
        for mask in cluster.masks:
            for path in mask.paths:
                json_paths.Path(path)
    except (ConfigError, StoreProblem, ValueError) as error:
        raise SettingsError(f"cluster {cluster.name}: {error}") from None


def _warn(settings: Settings, host: str, *, tls: bool) -> None:
    """Say what is risky about an address that other machines reach."""
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback:
        return
    if not tls and any(cluster.login.personal for cluster in settings.clusters):
        log.warning(
            "passwords and sessions cross the network without TLS: use --tls-cert and --tls-key, "
            "or --https-proxy"
        )
    for cluster in settings.clusters:
        if not cluster.login.personal:
            log.warning(
                "cluster %s needs no log-in: every client that reaches %s may use it", cluster.name, host
            )
