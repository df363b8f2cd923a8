"""Ottla: Apache Kafka's job done by Python on Kubernetes.

In a clone, this folder has what the base install runs, and `broker/ottla` the rest of the package, which
`extend_path` finds on `sys.path`. A wheel has both in one folder.
"""

from pkgutil import extend_path

__path__[:] = extend_path(__path__, __name__)

__version__ = "0.2.0.dev0"
"""The version of this tree, from which the versions of charts and images are derived."""
