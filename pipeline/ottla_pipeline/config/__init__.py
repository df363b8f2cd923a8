"""The jobs' configuration: YAML files as strict models, every error with its path. No Spark in here."""
