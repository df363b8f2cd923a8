"""The REST API of Kafka Connect's workers, as a port and over HTTP.

Used by `reconcile_connect`. Every worker answers for the whole cluster; a request that only its leader can
serve is forwarded. During a rebalance, workers refuse changes with 409: the next reconciliation tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol
from urllib.parse import quote

import aiohttp

from ottla_operator.planning.connectors import (
    ConnectorState,
    ConnectState,
    FieldError,
    PluginInfo,
    TaskState,
)
from ottla_operator.planning.steps import (
    ChangeConnectorState,
    ChangeOffsets,
    ConnectorStep,
    DeleteConnector,
    PutConnector,
    RestartConnector,
    RestartTask,
)
from ottla_operator.platform.interfaces import StepFailed

_TIMEOUT_S: Final = 10
_VERBS: Final = {"running": "resume", "paused": "pause", "stopped": "stop"}
_MESSAGE_MAX: Final = 500


class ConnectApi(Protocol):
    """The workers of one ConnectCluster."""

    async def observe(self, url: str, offsets: Collection[str] = ()) -> ConnectState:
        """Describe workers and connectors. `offsets`: connectors whose offsets are read, too. Unreachable
        workers are a ConnectState, not an error."""
        ...

    async def validate(self, url: str, config: Mapping[str, str]) -> list[FieldError]:
        """What the connector's class refuses of a configuration. Raises StepFailed."""
        ...

    async def execute(self, url: str, step: ConnectorStep) -> None:
        """Raises StepFailed."""
        ...


class _Refused(Exception):
    """A response with an error. `status` 0: there was no response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ConnectRest:
    """`ConnectApi` over HTTP."""

    async def observe(self, url: str, offsets: Collection[str] = ()) -> ConnectState:
        try:
            async with _session() as session:
                root = await _request(session, "GET", f"{url}/")
                plugins = await _request(session, "GET", f"{url}/connector-plugins")
                found = await _request(session, "GET", f"{url}/connectors?expand=info&expand=status")
                topics = await asyncio.gather(*(_topics(session, url, name) for name in found))
                listed = [name for name in offsets if name in found]
                pairs = await asyncio.gather(*(_offsets(session, url, name) for name in listed))
        except _Refused as error:
            return ConnectState(problem=error.message)
        offsets_by_name = dict(zip(listed, pairs, strict=True))
        return ConnectState(
            answers=True,
            problem="",
            version=str(root.get("version", "")),
            plugins=tuple(
                PluginInfo(each["class"], each["type"], str(each.get("version") or "")) for each in plugins
            ),
            connectors={
                name: replace(connector_state(item, used), offsets=offsets_by_name.get(name))
                for (name, item), used in zip(found.items(), topics, strict=True)
            },
        )

    async def validate(self, url: str, config: Mapping[str, str]) -> list[FieldError]:
        plugin = quote(config["connector.class"], safe="")
        try:
            async with _session() as session:
                path = f"{url}/connector-plugins/{plugin}/config/validate"
                answer = await _request(session, "PUT", path, dict(config))
        except _Refused as error:
            if error.status in (400, 404, 500):
                # The class is not in the plugin path, or its own validation has failed.
                return [FieldError("connector.class", (error.message,))]
            raise _failed("validate", config["name"], error) from None
        found = []
        for each in answer.get("configs") or ():
            value = each.get("value") or {}
            if value.get("errors"):
                found.append(FieldError(str(value.get("name")), tuple(value["errors"])))
        return found

    async def execute(self, url: str, step: ConnectorStep) -> None:
        path = f"{url}/connectors/{quote(step.connector, safe='')}"
        try:
            async with _session() as session:
                await _execute(session, url, path, step)
        except _Refused as error:
            raise _failed(str(step).split()[0], step.connector, error) from None


async def _execute(session: aiohttp.ClientSession, url: str, path: str, step: ConnectorStep) -> None:
    match step:
        case PutConnector(is_new=True):
            body = {"name": step.connector, "config": dict(step.config), "initial_state": step.state.upper()}
            await _request(session, "POST", f"{url}/connectors", body)
        case PutConnector():
            await _request(session, "PUT", f"{path}/config", dict(step.config))
        case ChangeConnectorState():
            await _request(session, "PUT", f"{path}/{_VERBS[step.state]}")
        case RestartConnector():
            failed = str(step.only_failed).lower()
            await _request(session, "POST", f"{path}/restart?includeTasks=true&onlyFailed={failed}")
        case RestartTask():
            await _request(session, "POST", f"{path}/tasks/{step.task}/restart")
        case ChangeOffsets(offsets=None):
            await _request(session, "DELETE", f"{path}/offsets")
        case ChangeOffsets():
            await _request(session, "PATCH", f"{path}/offsets", {"offsets": list(step.offsets or ())})
        case DeleteConnector():
            try:
                await _request(session, "DELETE", path)
            except _Refused as error:
                if error.status != 404:
                    raise


def _failed(what: str, connector: str, error: _Refused) -> StepFailed:
    reason = "Rebalancing" if error.status == 409 else "ConnectError"
    return StepFailed(reason, f"{what} {connector}: {error.message}")


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))


async def _request(session: aiohttp.ClientSession, method: str, url: str, body: object = None) -> Any:
    """The content of the response. Raises _Refused."""
    try:
        # Without a body, aiohttp would name another type, which Connect refuses.
        headers = {"Content-Type": "application/json"}
        async with session.request(method, url, json=body, headers=headers) as response:
            content = await response.json(content_type=None) if response.status != 204 else None
            if response.status < 300:
                return content
            message = str((content or {}).get("message") or f"HTTP {response.status}")
            raise _Refused(response.status, message[:_MESSAGE_MAX])
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise _Refused(0, f"{url.split('/connector')[0]}: {error or 'timed out'}") from None


async def _topics(session: aiohttp.ClientSession, url: str, connector: str) -> list[str]:
    """The topics that the connector has used; none where `topic.tracking.enable` is false."""
    try:
        answer = await _request(session, "GET", f"{url}/connectors/{quote(connector, safe='')}/topics")
    except _Refused as error:
        if error.status == 0:
            raise
        return []
    return [str(topic) for topic in answer.get(connector, {}).get("topics", [])]


async def _offsets(session: aiohttp.ClientSession, url: str, connector: str) -> list[dict[str, Any]] | None:
    """The connector's offsets; None when Connect cannot read them now."""
    try:
        answer = await _request(session, "GET", f"{url}/connectors/{quote(connector, safe='')}/offsets")
    except _Refused as error:
        if error.status == 0:
            raise
        return None
    found: list[dict[str, Any]] = answer["offsets"]
    return found


def connector_state(item: Mapping[str, Any], topics: list[str]) -> ConnectorState:
    """A connector of `GET /connectors?expand=info&expand=status`."""
    info, status = item.get("info") or {}, item.get("status") or {}
    own = status.get("connector") or {}
    return ConnectorState(
        config=dict(info.get("config") or {}),
        type=str(info.get("type") or status.get("type") or ""),
        state=str(own.get("state") or ""),
        worker_id=str(own.get("worker_id") or ""),
        trace=str(own.get("trace") or ""),
        tasks=tuple(
            TaskState(
                int(task["id"]), str(task["state"]), str(task.get("worker_id") or ""), task.get("trace") or ""
            )
            for task in status.get("tasks") or ()
        ),
        topics=tuple(topics),
    )
