"""`python -m ottla.simulation`: runs of whole simulated clusters.

python -m ottla.simulation run 17            # one seed, with its timeline if it fails
python -m ottla.simulation soak 1 10000      # many seeds on all cores, resumed where it was interrupted
"""

from ottla.simulation.command import commands
from ottla.simulation.runner import outcome_of, simulate

if __name__ == "__main__":
    commands(simulate, outcome_of)()
