"""The few settings that Kafka has not got: their names begin with `ottla.`.

Called by `ottla.metadata.config`. They are given at the start and stay: DescribeConfigs shows those that are
given, and no request alters them. A topic's are in `config_table`.
"""

from __future__ import annotations

from ottla.metadata.config_def import ConfigDef, ConfigKey, ConfigType, at_least, deletion_policy_names

BUILT_IN_POLICIES = ("size", "time")
"""Deletion policies that every broker has."""

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
        ConfigKey(
            "ottla.log.deletion.policies",
            ConfigType.LIST,
            "size,time",
            "Policies that name segments to delete, of topics without ottla.deletion.policies.",
            deletion_policy_names,
        ),
        ConfigKey(
            "ottla.log.deletion.policy.classes",
            ConfigType.LIST,
            "",
            "Deletion policies that topics may name besides size and time: module:Class, or an entry point "
            "in the group ottla.policies.",
            deletion_policy_names,
        ),
    ]
)
