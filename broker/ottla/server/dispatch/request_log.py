"""The request log: a line for a sample of the requests, with the phases of their times.

Called by the dispatcher for the requests that it measures, one in TIMED_EVERY; `ottla.request.log.every` says
of how many requests one is logged. Lines have neither records nor the content of requests. The logger is
`ottla.request`.
"""

from __future__ import annotations

import logging
from typing import Final

from ottla.server.dispatch.counters import TIMED_EVERY, PhaseTimes
from ottla.server.dispatch.dispatcher import Request

log = logging.getLogger("ottla.request")

_MESSAGE: Final = "Completed request"


class Sample:
    """One request in `every`, rounded up to a multiple of TIMED_EVERY, of those that are measured."""

    def __init__(self, every: int) -> None:
        self._skipped_max = max(0, -(-every // TIMED_EVERY) - 1)
        self._skipped = 0

    def takes(self) -> bool:
        if self._skipped < self._skipped_max:
            self._skipped += 1
            return False
        self._skipped = 0
        return True


class RequestLog:
    """Logs one request in `every`."""

    def __init__(self, every: int) -> None:
        self._sample = Sample(every)

    def __call__(self, request: Request, times: PhaseTimes) -> None:
        if not self._sample.takes():
            return
        log.info(_MESSAGE, extra={"fields": fields_of(request, times)})


def fields_of(request: Request, times: PhaseTimes) -> dict[str, str | int | float]:
    """By the names of Kafka's request log where it has one."""
    connection = request.connection
    return {
        "api": request.route.api_key.name,
        "version": request.version,
        "correlationId": request.correlation_id,
        "clientId": request.client_id or "",
        "connection": connection.peer_host,
        "listener": connection.listener,
        "principal": str(request.principal),
        "requestBytes": request.size,
        "totalTimeMs": round(times.total, 3),
        "requestQueueTimeMs": round(times.queue, 3),
        "localTimeMs": round(times.local, 3),
        "remoteTimeMs": round(times.remote, 3),
        "sendTimeMs": round(times.response, 3),
        "throttleTimeMs": round(times.throttle, 3),
    }
