"""Hadoop's files, where they were before the lake had a folder of its own."""

from ottla_pipeline.lake.files import Files

__all__ = ["Files"]
