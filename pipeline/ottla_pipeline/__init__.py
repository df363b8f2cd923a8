"""The Spark side of Ottla: jobs that land what flows through the brokers, and prove that all of it landed."""

from ottla.extras import require

require("pipeline")
