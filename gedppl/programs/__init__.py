"""Where probabilistic programs meet the library: the only rooms that import a PPL.

Both PPLs keep their effect handlers in process-global lists, so two threads that trace at once mix
each other's sites. Every pass through a user's program happens under `LOCK`.
"""

from __future__ import annotations

import threading

LOCK = threading.RLock()
