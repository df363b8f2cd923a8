"""The common options of commands for a cluster, clients with these options, and exit codes of errors.

Exit codes: 0 success; 1 the cluster rejected the request, with Kafka's error; 2 the command line is invalid;
3 no broker responded in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from ottla.client.admin import AdminClient
from ottla.client.errors import ClientError, NetworkError, RequestTimedOutError, UnsupportedVersionError
from ottla.client.routing import ClusterUnreachable
from ottla.metadata.config_def import ConfigError, read_properties
from ottla.protocol.errors import KafkaError
from ottla.security.clients import ClientSecurity

_PORT = 9092
_COMPLETION_S = 1.0
_LOCAL = [("localhost", _PORT)]
_ADDRESS = "\n--bootstrap or OTTLA_BOOTSTRAP has the address of a running broker, as HOST:PORT"
_SECURITY = ("security.protocol", "sasl.", "ssl.")

T = TypeVar("T")


class Refused(click.ClickException):
    """The cluster rejected the request, or it cannot be executed."""

    exit_code = 1


class Unreachable(click.ClickException):
    """No broker responded in time."""

    exit_code = 3


@dataclass(frozen=True)
class Session:
    """The options of a command, and access to the cluster."""

    bootstrap: list[tuple[str, int]]
    output: str
    """`table` or `json`."""
    timeout_s: float
    properties: Mapping[str, str] = field(default_factory=dict)
    """Client properties: security.protocol, sasl.* and ssl.*."""

    def admin(self, use: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Run one coroutine with an admin client."""

        async def work() -> T:
            limit_ms = int(self.timeout_s * 1000)
            async with AdminClient(self.client(), default_api_timeout_ms=limit_ms) as client:
                return await use(client)

        return self.run(work())

    def client(self) -> dict[str, object]:
        """The settings of a client: bootstrap servers, client id, time-out and security."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "ottla-cli",
            "request.timeout.ms": int(self.timeout_s * 1000),
            **self.properties,
        }

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine with `translated_errors`."""
        with self.translated_errors():
            return asyncio.run(work)

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Translate errors of clients into Refused and Unreachable, with a message of one line and an exit
        code."""
        try:
            yield
        except RequestTimedOutError as error:
            raise Unreachable(f"no response within {self.timeout_s:g} s: {error.message}") from None
        except UnsupportedVersionError as error:
            raise Refused(f"not supported by this cluster: {error.message}") from None
        except (ClusterUnreachable, NetworkError) as error:
            raise Unreachable(f"cannot reach the cluster: {error}{_ADDRESS}") from None
        except (ClientError, KafkaError) as error:
            raise Refused(str(error)) from None
        except TimeoutError:
            raise Unreachable(f"no response within {self.timeout_s:g} s") from None
        except BrokenPipeError:
            raise  # standard output was closed, as by `| head`
        except OSError as error:
            raise Unreachable(f"cannot reach the cluster: {error}{_ADDRESS}") from None


def _addresses(
    ctx: click.Context, parameter: click.Parameter, text: str | None
) -> list[tuple[str, int]] | None:
    return None if text is None else parse_addresses(text)


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """Parse HOST:PORT[,…]; the default port is 9092. Raises click.BadParameter."""
    found = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or part.strip().endswith("]"):
            host, port = part.strip(), str(_PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise click.BadParameter(f"'{part.strip()}' is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    return found


class Config(NamedTuple):
    """The content of a command config: bootstrap servers, and security properties."""

    bootstrap: list[tuple[str, int]]
    properties: Mapping[str, str] = {}


def _config(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> Config:
    if path is None:
        return Config(_LOCAL)
    try:
        properties = read_properties(path)
        if "bootstrap.servers" not in properties and "listeners" in properties:
            properties = _as_the_broker(properties)
        servers = properties.get("bootstrap.servers")
        ClientSecurity.of_properties(properties)  # reports invalid properties before the command runs
        return Config(
            parse_addresses(servers) if servers else _LOCAL,
            {key: value for key, value in properties.items() if key.startswith(_SECURITY)},
        )
    except (ConfigError, ValueError) as problem:
        raise click.BadParameter(str(problem)) from None


def _as_the_broker(settings: dict[str, str]) -> dict[str, str]:
    """The client properties with which a broker connects to itself, from its server.properties: the address
    and the security of its inter-broker listener. Raises ConfigError."""
    from ottla.metadata.config import BrokerConfig

    config = BrokerConfig.from_properties(settings)
    name = config.inter_broker_listener
    at = next(listener for listener in config.advertised_listeners if listener.name == name)
    prefix = f"listener.name.{name.lower()}."
    mechanism = settings.get("sasl.mechanism.inter.broker.protocol", "GSSAPI")
    own = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
    prefix = f"{mechanism.lower()}."
    of_mechanism = {key.removeprefix(prefix): value for key, value in own.items() if key.startswith(prefix)}
    return {
        **settings,
        **own,
        **of_mechanism,
        "bootstrap.servers": f"{at.host}:{at.port}",
        "security.protocol": at.protocol,
        "sasl.mechanism": mechanism,
    }


def cluster_command(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a cluster to a command, and pass a Session as its first argument."""

    @click.option(
        "-b",
        "--bootstrap",
        envvar="OTTLA_BOOTSTRAP",
        show_envvar=True,
        metavar="HOST:PORT[,…]",
        callback=_addresses,
        help="Bootstrap servers. Default: those of the command config, or localhost:9092.",
    )
    @click.option(
        "--command-config",
        "command_config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="OTTLA_COMMAND_CONFIG",
        show_envvar=True,
        callback=_config,
        help="Properties of Kafka's clients (bootstrap.servers, security.protocol, sasl.*, ssl.*), or a "
        "broker's server.properties.",
    )
    @click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="The output format.",
    )
    @click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0.1),
        default=30,
        show_default=True,
        help="Time-out in seconds.",
    )
    @wraps(command)
    def with_session(
        *args: Any,
        bootstrap: list[tuple[str, int]] | None,
        command_config: Config,
        output: str,
        timeout_s: float,
        **kwargs: Any,
    ) -> None:
        session = Session(
            bootstrap or command_config.bootstrap,
            output,
            timeout_s,
            command_config.properties,
        )
        command(session, *args, **kwargs)

    return with_session


def _names(
    ctx: click.Context, incomplete: str, ask: Callable[[AdminClient], Coroutine[Any, Any, Iterable[str]]]
) -> list[str]:
    """Names for a shell's completion, from the cluster of an unfinished command line. None without an answer:
    a completion must neither wait nor print errors."""
    try:
        config: Config = ctx.params.get("command_config") or Config(_LOCAL)
        bootstrap = ctx.params.get("bootstrap") or config.bootstrap
        names = Session(bootstrap, "json", _COMPLETION_S, config.properties).admin(ask)
    except Exception:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def complete_topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """`shell_complete` of a parameter for topics."""

    async def ask(admin: AdminClient) -> Iterable[str]:
        return await admin.list_topics()

    return _names(ctx, incomplete, ask)


def complete_groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """`shell_complete` of a parameter for consumer groups."""

    async def ask(admin: AdminClient) -> Iterable[str]:
        listed = await admin.list_groups()
        return [group.group_id for groups in listed.values() for group in groups]

    return _names(ctx, incomplete, ask)


def key_values(items: tuple[str, ...], what: str) -> dict[str, str]:
    """Parse `NAME=VALUE` arguments. Raises click.UsageError."""
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{what} '{item}' must be NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs
