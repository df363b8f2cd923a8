"""The operator: runs Ottla clusters as custom resources describe them, on Kubernetes or as local processes.

The layers are an import contract in pyproject.toml, from the bottom: `conditions`, `resources` (the models),
`planning` (pure functions from the desired and the observed state to steps), `platform` (interfaces to the
outside and their implementations over local processes and the Admin API), `step_executor`, `reconcile` (one
reconciliation), and on top of it `kubernetes` (`ottla operator`), `up` (`ottla up`) and `kubectl` (the
plugin).
"""

from ottla.extras import require

require("operator")
