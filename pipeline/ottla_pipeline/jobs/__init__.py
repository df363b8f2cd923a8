"""The Spark jobs, one module each; `ottla_pipeline.command` runs them, also under spark-submit."""
