"""Topics of one cluster kept in another: what the mirror job is made of.

    naming        what a topic is called over there, and what would go round in circles (pure)
    translation   which offset of the target stands for which of the source (pure)
    positions     how far a source partition is, as it is written with each transaction (pure)
    config        the job's configuration
    topics        topics on the target: made, grown, configured as on the source
    writer        one source partition into the target, exactly once
    tasks         what Spark runs for each partition of a batch
    groups        committed offsets of consumer groups, carried over

Called by `ottla_pipeline.jobs.mirror`.
"""
