"""One engine cluster: django-q2's processes around our workers, started and stopped so that no attempt is lost or left running."""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from django.conf import settings
from django.db import connections
from django_q.cluster import Cluster
from django_q.signals import post_spawn

from runtime_jobs.engine import process

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_STOP_MARGIN_SECONDS = 4


def run_cluster(lane: str) -> int:
    """Run the lane's workers until SIGTERM or SIGINT. Returns the exit status: 0 after a stop, 1 when the cluster broke down.

    At a stop no more jobs are claimed; running attempts get ENGINE_DRAIN_SECONDS, then they are handed back.
    """
    process.end_with_parent()
    post_spawn.connect(process.become_worker)
    connections.close_all()
    cluster = Cluster()
    stopping = _on_stop_signals()
    cluster.start()
    logger.info("engine lane %s is running: %d workers, %d attempts each", lane, settings.ENGINE_WORKERS, settings.ENGINE_CONCURRENCY)
    process.pulse()
    while not stopping.is_set():
        if broken := _broken(cluster):
            logger.critical("engine lane %s: %s; ending, so that a supervisor starts the lane again", lane, broken)
            _kill_children()
            return 1
        time.sleep(_POLL_SECONDS)
    logger.info("engine lane %s is stopping: running attempts have %g s", lane, settings.ENGINE_DRAIN_SECONDS)
    process.drain_cluster()
    with _bounded(settings.ENGINE_DRAIN_SECONDS + _STOP_MARGIN_SECONDS):
        cluster.stop()
    logger.info("engine lane %s has stopped", lane)
    return 0


def _broken(cluster: Cluster) -> str:
    """Why this cluster can no longer serve; empty while it can.

    A worker that was killed while it held django-q2's queue lock makes all that follow it wait for ever, and the cluster looks alive.
    """
    if not cluster.sentinel.is_alive():
        return "the sentinel died"
    silent = process.seconds_without_pulse()
    return f"no worker has shown a pulse for {silent:.0f} s" if silent > settings.ENGINE_WATCHDOG_SECONDS else ""


class _Flag:
    """An event that a signal handler may set: setting a threading.Event there can deadlock with a waiter."""

    def __init__(self) -> None:
        self._set = False

    def set(self, *_: object) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


def _on_stop_signals() -> _Flag:
    # In place of Cluster's own handler, which stops inside the handler and can hang there.
    flag = _Flag()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, flag.set)
    return flag


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """End the whole cluster by force when stopping takes longer: its jobs come back by their leases."""
    timer = threading.Timer(seconds, _give_up, [os.getpid()])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(main: int) -> None:
    logger.critical("the engine did not stop in time; killing its processes")
    _kill_children()
    os.kill(main, signal.SIGKILL)


def _kill_children() -> None:
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


def use_fork() -> None:
    """django-q2's workers are forks; Python 3.14 has another default."""
    multiprocessing.set_start_method("fork", force=True)
