"""Strimzi's resources as Ottla's, for `kubectl ottla convert`. Pure functions."""
