"""Requested restarts: each new value of a request restarts all brokers once, as a roll.

Requests come from the resource's annotation (`kubectl ottla roll`), from the platform (`kubectl rollout
restart` of the brokers' StatefulSet), and from the pod template, where earlier versions of the plugin wrote
them. The status records the values that were taken up, so that a request may be removed, or set back to an
earlier value, without another roll. The latest one is part of the revision: a broker that runs with another
one is restarted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla_operator.planning.observed import Observed
from ottla_operator.planning.revision import RESTART
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.common import RESTART_ANNOTATION
from ottla_operator.resources.pods import RESTARTED_ANNOTATION

RECORDED_MAX: Final = 10
"""More are recorded only while they are requested or brokers run with them."""
_LENGTH_MAX: Final = 64


def handled_restarts(cluster: BrokerCluster, observed: Observed, of_platform: str) -> Sequence[str]:
    """The requests taken up until now, the latest last. `of_platform`: the request on the platform, or "".

    Brokers may run with one that the status does not have: the operator was killed before it wrote the
    status, or the status was lost.
    """
    running = sorted(broker.settings.get(RESTART, "") for broker in observed.brokers.values())
    in_template = cluster.spec.template.pod.metadata.annotations.get(RESTARTED_ANNOTATION, "")
    asked = cluster.metadata.annotations.get(RESTART_ANNOTATION, "")
    requests = [value.strip()[:_LENGTH_MAX] for value in (*running, in_template, of_platform, asked)]
    handled = list(cluster.status.handled_restarts)
    for request in requests:
        if request and request not in handled:
            handled.append(request)
    old = [value for value in handled[:-RECORDED_MAX] if value in requests]
    return [*old, *handled[-RECORDED_MAX:]]
