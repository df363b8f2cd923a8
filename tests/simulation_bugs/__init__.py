"""Planted bugs: whether the simulation finds the mistakes that brokers really had.

`catalogue` has the bugs, each an exact change of the source, and `search` runs seeds in a copy of the source
that has one of them. `python -m tests.simulation_bugs NAME|all` searches and writes the table of
docs/explanation/simulation-power.md.
"""
