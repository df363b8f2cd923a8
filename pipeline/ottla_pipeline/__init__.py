"""The Spark jobs of Ottla: they read topics, write lakes and topics, and audit that every record arrived."""

from ottla.extras import require

require("pipeline")
