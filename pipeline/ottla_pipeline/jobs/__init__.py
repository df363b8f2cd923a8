"""One Spark job a module; each runs by `python -m ottla_pipeline.jobs.NAME` and under spark-submit."""
