"""What the processes of one engine cluster share: the wish to drain, and the duty to end when their parent is gone."""

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

# Shared memory without a lock: a lock could be held for ever by a process that was killed.
_draining = multiprocessing.RawValue(ctypes.c_bool, False)

# When a worker of this cluster last went round its loop, by the clock that all processes of a machine share.
_pulse = multiprocessing.RawValue(ctypes.c_double, 0.0)

_ORPHAN_CHECK_SECONDS = 1.0

_this_worker_drains = threading.Event()
_is_worker = False


def drain_cluster() -> None:
    """Tell every worker of the cluster to take no more jobs. Safe in a signal handler."""
    _draining.value = True


def drain_this_worker(*_: Any) -> None:
    _this_worker_drains.set()


def is_draining() -> bool:
    return bool(_draining.value) or _this_worker_drains.is_set()


def pulse() -> None:
    """A worker goes round its loop."""
    _pulse.value = time.monotonic()


def seconds_without_pulse() -> float:
    return time.monotonic() - float(_pulse.value)


def become_worker(**_: Any) -> None:
    """Receiver of django-q2's post_spawn, in a new worker: a SIGTERM to the process group drains it instead of killing its attempts."""
    global _is_worker
    _is_worker = True
    signal.signal(signal.SIGTERM, drain_this_worker)


def end_with_parent() -> None:
    """From now on every process that is forked ends when its parent does (a worker drains first). Call once, in the main process.

    django-q2 has no such check: after a SIGKILL of the main process its children work on with old code.
    """
    os.register_at_fork(after_in_child=_watch_parent)


def _watch_parent() -> None:
    parent = os.getppid()
    threading.Thread(target=_end_when_orphaned, args=(parent,), name="orphan-watch", daemon=True).start()


def _end_when_orphaned(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_ORPHAN_CHECK_SECONDS)
    if not _is_worker:
        os._exit(1)
    _this_worker_drains.set()
