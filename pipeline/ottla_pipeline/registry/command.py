"""`ottla-registry`: a schema registry on a cluster. Ends in order on SIGTERM and SIGINT."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

import click
import uvicorn

from ottla import __version__, logs
from ottla.security.distinguished_names import MappingRules
from ottla_pipeline.config.common import check_addresses
from ottla_pipeline.registry import access
from ottla_pipeline.registry.app import Authenticator, PeerProtocol, RegistryApp
from ottla_pipeline.registry.log import SAFE_REPLICAS, TopicLog
from ottla_pipeline.registry.store import Store
from ottla_pipeline.registry.worker import WorkerPool

GRACE_S = 10


def _bootstrap(context: click.Context, parameter: click.Parameter, given: str) -> str:
    try:
        return check_addresses(given)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _options(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    return dict(_pair(each, context, parameter) for each in given)


def _file(context: click.Context, parameter: click.Parameter, given: Path | None) -> dict[str, str]:
    lines = [] if given is None else given.read_text().splitlines()
    wanted = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return dict(_pair(line, context, parameter) for line in wanted)


def _pair(text: str, context: click.Context, parameter: click.Parameter) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # What comes after the name may be a secret.
        raise click.BadParameter(f"{text.split()[0]}: must be NAME=VALUE", context, parameter)
    return name.strip(), value.strip()


def _mapping(context: click.Context, parameter: click.Parameter, given: str) -> MappingRules:
    try:
        return MappingRules(given)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _access(context: click.Context, parameter: click.Parameter, given: Path | None) -> access.Access | None:
    try:
        return None if given is None else access.read(given)
    except (ValueError, OSError) as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _hash_password(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        click.echo(access.hashed(password))
        context.exit()


def _verification(authorities: str | None, optional: bool) -> int:
    if authorities is None:
        return ssl.CERT_NONE
    return ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED


@click.command()
@click.version_option(__version__, prog_name="ottla-registry")
@click.option("--bootstrap", required=True, callback=_bootstrap, help="Brokers to start from: HOST:PORT[,…].")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 in a pod."
)
@click.option("--port", default=8081, show_default=True, type=click.IntRange(1, 65535))
@click.option(
    "--topic", default="_schemas", show_default=True, help="Created (compacted) if it does not exist."
)
@click.option(
    "--replication-factor",
    default=SAFE_REPLICAS,
    show_default=True,
    type=click.IntRange(1, 32767),
    help="Of the topic when it is created; at most the number of brokers.",
)
@click.option("--kafka-option", "options", multiple=True, callback=_options, help="librdkafka's NAME=VALUE.")
@click.option(
    "--kafka-config",
    "file_options",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_file,
    help="A file with such lines, for settings that must not be visible on the command line.",
)
@click.option(
    "--tls-certificate", type=click.Path(exists=True, dir_okay=False), help="PEM; enables HTTPS only."
)
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="PEM.")
@click.option(
    "--tls-client-ca",
    type=click.Path(exists=True, dir_okay=False),
    help="PEM; requires client certificates of these authorities.",
)
@click.option(
    "--tls-client-optional", is_flag=True, help="Accepts a password in place of a client certificate."
)
@click.option(
    "--tls-principal-mapping",
    "mapping",
    default="DEFAULT",
    show_default=True,
    callback=_mapping,
    help="Maps certificates to users, as the brokers' ssl.principal.mapping.rules.",
)
@click.option(
    "--access",
    "access_rules",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_access,
    help="YAML: users and their permissions. Without it every request is permitted.",
)
@click.option(
    "--hash-password",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_hash_password,
    help="Prompts for a password, prints its hash for the --access file, and exits.",
)
def main(
    bootstrap: str,
    host: str,
    port: int,
    topic: str,
    replication_factor: int,
    options: dict[str, str],
    file_options: dict[str, str],
    tls_certificate: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    tls_client_optional: bool,
    mapping: MappingRules,
    access_rules: access.Access | None,
) -> None:
    """A schema registry with Confluent's REST API, kept in a compacted topic.

    Several instances may share one topic for availability: each serves reads and writes.
    """
    logs.configure()
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key go together")
    if tls_client_ca is not None and tls_certificate is None:
        raise click.UsageError("--tls-client-ca needs --tls-certificate and --tls-key")
    if tls_client_optional and (tls_client_ca is None or access_rules is None):
        raise click.UsageError("--tls-client-optional needs --tls-client-ca and --access")
    settings = {**file_options, **options}
    store = Store(TopicLog(bootstrap, topic, settings, replication_factor=replication_factor), WorkerPool())
    server = uvicorn.Server(
        uvicorn.Config(
            RegistryApp(store, Authenticator(access_rules, mapping)),
            http=PeerProtocol,
            host=host,
            port=port,
            ssl_certfile=tls_certificate,
            ssl_keyfile=tls_key,
            ssl_ca_certs=tls_client_ca,
            ssl_cert_reqs=_verification(tls_client_ca, tls_client_optional),
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=GRACE_S,
        )
    )
    server.run()
    if not server.started:
        sys.exit(1)
