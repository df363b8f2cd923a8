"""Sinks of jobs other than the lake job: topics and tables, each batch once."""
