"""The parts of the mirror job, which replicates topics of one cluster to another.

    naming        names of mirrored topics, and the prevention of loops (pure)
    translation   the translation of source offsets to target offsets (pure)
    config        the job's configuration
    topics        topics on the target: creation, partitions, configuration
    target        what the tasks need to know of the target
    writer        writes one source partition to the target, exactly once
    tasks         the Spark task of each source partition of a batch
    syncs         the topic with the offset syncs
    groups        the sync of consumer groups' committed offsets

Called by `ottla_pipeline.jobs.mirror`.
"""
