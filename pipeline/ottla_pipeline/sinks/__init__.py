"""Where jobs write besides the lake: topics, each batch once."""
