"""`python -m ottla.dev OPTIONS`, with DevOptions as JSON: `ottla dev` for programs, with a faster start.

Called by ottla.testing. Prints the bootstrap address when the broker serves.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

from ottla import logs


def main() -> int:
    gc.disable()  # until it serves: see ottla.dev.serve
    logs.configure()
    from ottla.dev.journal import DamagedJournal
    from ottla.dev.serve import DevOptions, run
    from ottla.metadata.config import ConfigError
    from ottla.server.assembly.broker import StartupError

    given = json.loads(sys.argv[1])
    for name in ("data", "control"):
        if name in given:
            given[name] = Path(given[name])
    try:
        return run(DevOptions(**given), lambda bootstrap: print(f"ready bootstrap={bootstrap}", flush=True))  # noqa: T201
    except (ConfigError, StartupError, DamagedJournal, OSError) as error:
        sys.exit(f"cannot start: {error}")


if __name__ == "__main__":
    sys.exit(main())
