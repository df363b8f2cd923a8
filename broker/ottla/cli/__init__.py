"""The `ottla` command: a module for each subcommand."""

from ottla.extras import require

require("broker")
