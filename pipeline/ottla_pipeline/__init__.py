"""Spark jobs of Ottla: they read topics, write lakes and other topics, and audit the arrival of records."""

from ottla.extras import require

require("pipeline")
