"""One real broker to develop and test against, without ZooKeeper and without Java, that fails on demand.

`ottla dev` runs it; `ottla.testing` starts it from somebody's tests and tells it what to do by its control
socket. It is the broker that clusters run, over the in-memory metadata store.

    settings    what it is configured with
    journal     metadata that outlives the process, beside the logs
    faults      errors, delays and lost connections: what to do to which requests
    control     the socket that takes orders
    serve       all of it together, until a signal
"""

from ottla.extras import require

require("broker")
