"""The few settings that Kafka has not got: their names begin with `ottla.`.

Called by `ottla.metadata.config`. They are given at the start and stay; no request describes or alters them.
"""

from __future__ import annotations

from ottla.metadata.config_def import ConfigDef, ConfigKey, ConfigType, at_least

OTTLA_CONFIGS = ConfigDef(
    [
        ConfigKey(
            "ottla.fetch.session.max.partitions",
            ConfigType.INT,
            "100000",
            "How many partitions the fetch sessions of all consumers may have together; one session may have "
            "a fifth of that. A consumer with more partitions fetches without a session.",
            at_least(0),
        ),
        ConfigKey(
            "ottla.http.port",
            ConfigType.INT,
            "-1",
            "Where /metrics, /healthz and /readyz are served; 0 is any free port, -1 none.",
            at_least(-1),
        ),
        ConfigKey(
            "ottla.http.host", ConfigType.STRING, "", "The address to serve them on; empty is every address."
        ),
    ]
)
