"""Where jobs write besides the lake job's own: topics and tables, each batch once."""
