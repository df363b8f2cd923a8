"""A broker for development and tests, without ZooKeeper and Java, with fault injection.

`ottla dev` runs it; `ottla.testing` starts it in tests and controls it by its control socket. It is the
broker of clusters, with the in-memory metadata store.

    journal     metadata in a file beside the logs, kept between runs
    faults      errors, delays and lost connections for selected requests
    control     the control socket
    serve       settings, start and stop
"""

from ottla.extras import require

require("broker")
