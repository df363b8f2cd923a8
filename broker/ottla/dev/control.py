"""The socket by which tests tell a broker what shall go wrong: a line of JSON each way.

Opened by ottla.dev.serve once the broker serves clients; the other end is `ottla.testing`. It is a Unix
socket of the user's own, beside the broker's data.

    {"do": "fault", "effect": "error", "api": "PRODUCE", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}
    {"id": 1}
    {"do": "hits", "id": 1}
    {"hits": 2, "left": 0}

`do` is one of about, fault, hits, heal. What cannot be done is answered with {"problem": why}.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ottla.dev.faults import EFFECTS, Fault, Faults
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode

PATH_BYTES_MAX: Final = 107
"""Of a Unix socket, on Linux."""


class Control:
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
            # Linux gives the file the mode of the socket: there is no moment in which others may connect.
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
                    answer = self.obey(json.loads(line))
                except (AttributeError, LookupError, TypeError, ValueError) as e:
                    answer = {"problem": str(e)}
                writer.write(json.dumps(answer).encode() + b"\n")
        except ConnectionError:
            pass
        finally:
            writer.close()

    def obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ValueError for an order that cannot be carried out."""
        match order.get("do"):
            case "about":
                return dict(self._about)
            case "fault":
                return {"id": self._faults.add(fault_of(order)).id}
            case "hits":
                fault = self._faults.get(int(order["id"]))
                return {"hits": 0, "left": 0} if fault is None else {"hits": fault.hits, "left": fault.times}
            case "heal":
                self._faults.remove(order.get("id"))
                return {}
            case unknown:
                raise ValueError(f"do: {unknown}; allowed: about, fault, hits, heal")


def fault_of(order: Mapping[str, Any]) -> Fault:
    """Raises ValueError."""
    effect = order.get("effect")
    if effect not in EFFECTS:
        raise ValueError(f"effect: {effect}; allowed: {', '.join(EFFECTS)}")
    api = None if order.get("api") is None else _member(ApiKey, "api", order["api"])
    topic = order.get("topic")
    if topic is not None and api == ApiKey.FETCH:
        raise ValueError("topic: a Fetch names its topics once a session; choose by client_id instead")
    code = _member(ErrorCode, "error", order["error"]) if effect == "error" else ErrorCode.NONE
    if effect == "error" and code is ErrorCode.NONE:
        raise ValueError("error: NONE is no error")
    delay_s = float(order.get("delay_s") or 0)
    if not 0 <= delay_s < 1e6:
        raise ValueError(f"delay_s: {delay_s}; a number from 0")
    times = order.get("times")
    if times is not None and (not isinstance(times, int) or times < 1):
        raise ValueError(f"times: {times}; a whole number from 1, or null for every request")
    return Fault(
        effect,
        api=api,
        code=code,
        delay_s=delay_s,
        times=times,
        topic=topic,
        client_id=order.get("client_id"),
    )


def _member(table: Any, key: str, given: str | int) -> Any:
    """Of an enumeration, by name (however written) or number."""
    try:
        return table(given) if isinstance(given, int) else table[str(given).upper()]
    except (KeyError, ValueError):
        raise ValueError(f"{key}: {given} is none of Kafka 3.9's") from None
