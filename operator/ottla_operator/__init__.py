"""The operator: looks after Ottla clusters described by custom resources.

The same planning code runs over two platforms: local processes (`ottla up`) and, later, Kubernetes (kopf).
Layers, each importing only what stands left of it: conditions, resources, planning, platform, reconcile, up.
"""

from ottla.extras import require

require("operator")
