"""Makes docs/reference/client-api.md of signatures and docstrings: `python -m tests.api_reference --write`.

A test compares the page with the generated text.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from ottla.client import errors
from ottla.client.core.config import ClientConfig, ProducerConfig
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.error_kinds import BrokerError
from ottla.client.errors_by_code import BY_CODE

PAGE = Path(__file__).parents[1] / "docs/reference/client-api.md"

HEAD = """\
# API reference of the client

Made from the code by `python -m tests.api_reference --write`; do not edit it here.
[The client library](../guides/client.md) describes what the calls are for, the
[tutorial](../tutorials/client.md) where to begin.
"""

CLASSES = (
    "ottla.client.Producer",
    "ottla.client.Consumer",
    "ottla.client.AdminClient",
    "ottla.client.blocking.Producer",
    "ottla.client.blocking.Consumer",
    "ottla.client.RequestClient",
    "ottla.client.blocking.RequestClient",
    "ottla.client.core.types.TopicPartition",
    "ottla.client.core.types.ProducerRecord",
    "ottla.client.core.types.RecordMetadata",
    "ottla.client.core.types.ConsumerRecord",
    "ottla.client.Assignor",
    "ottla.client.Assignment",
    "ottla.client.Subscription",
    "ottla.client.interceptors.ProducerInterceptor",
    "ottla.client.interceptors.ConsumerInterceptor",
    "ottla.client.serialization.Serializer",
    "ottla.client.serialization.Deserializer",
    "ottla.client.serialization.JsonSerializer",
    "ottla.client.serialization.TextSerializer",
    "ottla.client.avro.AvroSerializer",
    "ottla.client.avro.AvroDeserializer",
    "ottla.client.schemas.RegistrySerializer",
    "ottla.client.schemas.RegistryDeserializer",
    "ottla.client.registry.RegistryClient",
    "ottla.client.metrics.Metric",
    "ottla.client.metrics.MetricsReporter",
    "ottla.client.metrics.PrometheusCollector",
    "ottla.testing.DevBroker",
)


def page() -> str:
    parts = [HEAD, *(class_part(path) for path in CLASSES), "# Settings\n"]
    parts += [
        settings_part(*each)
        for each in (
            ("All clients", ClientConfig),
            ("Producers", ProducerConfig),
            ("Consumers", ConsumerConfig),
        )
    ]
    parts.append(errors_part())
    return "\n".join(parts)


def class_part(path: str) -> str:
    module, _, name = path.rpartition(".")
    offered = getattr(import_module(module), name)
    lines = [f"## {path}\n", documentation(offered), ""]
    if getattr(offered.__init__, "__module__", "").startswith("ottla.") and not is_protocol(offered):
        lines += member(name, offered.__init__, called=name)
    for each, found in public(offered):
        lines += member(each, found)
    return "\n".join(lines)


def is_protocol(offered: type) -> bool:
    return bool(getattr(offered, "_is_protocol", False))


def public(offered: type) -> Iterator[tuple[str, Any]]:
    """As they are written, the class's own before those of its bases."""
    seen = set()
    for base in offered.__mro__:
        if base.__module__.partition(".")[0] != "ottla":
            continue
        for name, found in vars(base).items():
            is_call = inspect.isroutine(found) or isinstance(found, property | classmethod | staticmethod)
            if not name.startswith("_") and is_call and name not in seen:
                seen.add(name)
                yield name, found


def member(name: str, found: Any, called: str | None = None) -> list[str]:
    if isinstance(found, property):
        returned = inspect.signature(found.fget).return_annotation
        return [f"### `{name}: {returned}`\n", documentation(found), ""]
    call = getattr(found, "__func__", found)
    is_awaited = inspect.iscoroutinefunction(call)
    call = inspect.unwrap(call)
    return [
        f"### `{'await ' if is_awaited else ''}{called or name}{signature(call)}`\n",
        documentation(call),
        "",
    ]


def signature(call: Any) -> str:
    found = inspect.signature(call)
    given = [each for name, each in found.parameters.items() if name != "self"]
    text = str(found.replace(parameters=given))
    # Functions and enumerations as defaults go by their names; annotations are text, which is quoted.
    text = re.sub(r"<(?:function |built-in function )?([\w.]+)(?: at 0x\w+|: [^>]*)?>", r"\1", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text).removesuffix(" -> None")


def documentation(found: Any) -> str:
    return inspect.getdoc(found) or "" if getattr(found, "__doc__", None) else ""


def settings_part(title: str, config: type[ClientConfig]) -> str:
    inherited = set() if config is ClientConfig else {each.name for each in fields(ClientConfig)}
    own = [each for each in fields(config) if "parse" in each.metadata and each.name not in inherited]
    rows = [f"| `{each.name.replace('_', '.')}` | {default(each.default)} |" for each in own]
    return "\n".join([f"## {title}\n", "| key | default |", "|---|---|", *rows, ""])


def default(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return "" if value in (None, "") else f"`{value}`"


def errors_part() -> str:
    """What codes stand for, and then what none does."""
    own = [
        found
        for _, found in sorted(vars(errors).items())
        if inspect.isclass(found)
        and issubclass(found, errors.ClientError)
        and not issubclass(found, BrokerError)
    ]
    rows = [
        *(error_row(found, f"{int(found.code)} {found.code.name}") for _, found in sorted(BY_CODE.items())),
        *(error_row(found, "") for found in own),
    ]
    table = ["| class | Kafka's code | try again? | |", "|---|---|---|---|", *rows]
    return "\n".join(["# Errors\n", documentation(errors), "", *table, ""])


def error_row(found: type[errors.ClientError], code: str) -> str:
    meaning = " ".join(documentation(found).split())
    return f"| `{found.__name__}` | {code} | {'yes' if found.retriable else ''} | {meaning} |"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    else:
        sys.stdout.write(page())
