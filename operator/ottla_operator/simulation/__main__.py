"""`python -m ottla_operator.simulation`: runs of the operator in a simulated cluster.

python -m ottla_operator.simulation run 17 --workload scale
python -m ottla_operator.simulation soak 1 1000
"""

from ottla.simulation.command import commands
from ottla_operator.simulation.scenarios import outcome_of, simulate

if __name__ == "__main__":
    commands(simulate, outcome_of)()
