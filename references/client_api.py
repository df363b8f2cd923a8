"""client-api.md: the client library, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from ottla.client import errors
from ottla.client.error_kinds import BrokerError
from ottla.client.errors_by_code import BY_CODE

HEAD = """\
# API reference of the client

[The guide](../guides/client.md) describes what the calls are for, the [tutorial](../tutorials/client.md) where to begin.
The settings have a [page of their own](client-settings.md).
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


def pages() -> dict[str, str]:
    parts = [HEAD, *(class_part(path) for path in CLASSES), errors_part()]
    return {"client-api.md": "\n".join(parts)}


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
        assert found.fget is not None
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
    return "\n".join(["## Errors\n", documentation(errors), "", *table, ""])


def error_row(found: type[errors.ClientError], code: str) -> str:
    meaning = " ".join(documentation(found).split())
    return f"| `{found.__name__}` | {code} | {'yes' if found.retriable else ''} | {meaning} |"
