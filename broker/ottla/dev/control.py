"""The control socket, by which tests inject faults: JSON lines in both directions.

Opened by ottla.dev.serve when the broker serves; `ottla.testing` is the client. It is a Unix socket with mode
0600, beside the broker's data.

    {"do": "fault", "effect": "error", "api": "PRODUCE", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}
    {"id": 1}
    {"do": "hits", "id": 1}
    {"hits": 2, "left": 0}

`do` is one of about, fault, hits, heal. The response to an invalid command is {"problem": MESSAGE}.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ottla.dev.faults import EFFECTS, Fault, Faults
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode


class Control:
    """The server of the control socket."""

    def __init__(self, path: Path, faults: Faults, bootstrap: str) -> None:
        self._path = path
        self._faults = faults
        self._about = {"bootstrap": bootstrap, "pid": os.getpid()}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises OSError."""
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        try:
            # On Linux the file gets the mode of the socket, so that other users can never connect.
            os.fchmod(listening.fileno(), 0o600)
            listening.bind(str(self._path))
            self._server = await asyncio.start_unix_server(self._connected, sock=listening)
        except BaseException:
            listening.close()
            raise

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    answer = self.handle_command(json.loads(line))
                except (AttributeError, LookupError, TypeError, ValueError) as e:
                    answer = {"problem": str(e)}
                writer.write(json.dumps(answer).encode() + b"\n")
        except ConnectionError:
            pass
        finally:
            writer.close()

    def handle_command(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Execute a command and return its response. Raises ValueError for an invalid command."""
        match command.get("do"):
            case "about":
                return dict(self._about)
            case "fault":
                return {"id": self._faults.add(fault_of(command)).id}
            case "hits":
                fault = self._faults.get(int(command["id"]))
                return {"hits": 0, "left": 0} if fault is None else {"hits": fault.hits, "left": fault.times}
            case "heal":
                self._faults.remove(command.get("id"))
                return {}
            case unknown:
                raise ValueError(f"do: {unknown}; allowed: about, fault, hits, heal")


def fault_of(command: Mapping[str, Any]) -> Fault:
    """Raises ValueError."""
    effect = command.get("effect")
    if effect not in EFFECTS:
        raise ValueError(f"effect: {effect}; allowed: {', '.join(EFFECTS)}")
    api = None if command.get("api") is None else _member(ApiKey, "api", command["api"])
    topic = command.get("topic")
    if topic is not None and api == ApiKey.FETCH:
        raise ValueError(
            "topic: not supported for FETCH, which has topics once per session; use client_id instead"
        )
    code = _member(ErrorCode, "error", command["error"]) if effect == "error" else ErrorCode.NONE
    if effect == "error" and code is ErrorCode.NONE:
        raise ValueError("error: NONE is not an error")
    delay_s = float(command.get("delay_s") or 0)
    if not 0 <= delay_s < 1e6:
        raise ValueError(f"delay_s: {delay_s}; must be a number from 0")
    times = command.get("times")
    if times is not None and (not isinstance(times, int) or times < 1):
        raise ValueError(f"times: {times}; must be a whole number from 1, or null for all requests")
    return Fault(
        effect,
        api=api,
        code=code,
        delay_s=delay_s,
        times=times,
        topic=topic,
        client_id=command.get("client_id"),
    )


def _member(table: Any, key: str, given: str | int) -> Any:
    """The member of an enumeration, by name (in any case) or number."""
    try:
        return table(given) if isinstance(given, int) else table[str(given).upper()]
    except (KeyError, ValueError):
        near = get_close_matches(str(given).upper(), table.__members__, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"{key}: {given} does not exist in Kafka 3.9{hint}") from None
