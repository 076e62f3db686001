"""System checks: what `manage.py check` and every start of the engine refuse, since it breaks the engine without a word.

Most are traps of django-q2 1.11 that a setting can spring; each was seen to happen.
"""

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured

from runtime_jobs import registry
from runtime_jobs.services.credentials import key_ring

TAG = "runtime_jobs"
BROKER = "runtime_jobs.engine.broker.TicketBroker"
# How often the lease keeper looks up (engine/lease.py); it renews at a quarter of the lease.
RENEWAL_TICK_SECONDS = 0.2
# What a worker process has open beside its calls and connections: listeners, pipes, the event loop, log, locale and time zone files.
SPARE_FILES = 64


@dataclass(frozen=True)
class _Rule:
    """What a key of Q_CLUSTER must be. `default` is what django-q2 takes where it is not set."""

    number: int
    key: str
    default: Any
    holds: Callable[[Any], bool]
    trouble: str
    hint: str


_RULES = (
    _Rule(
        1, "scheduler", True, lambda value: value is False,
        "django-q2's scheduler would lock rows every half minute, and one malformed schedule stops all of them",
        "Set scheduler to False.",
    ),
    _Rule(
        2, "save_limit", 250, lambda value: value == -1,
        "django-q2 would keep a table of results of its own, and read all of it for each new one",
        "Set save_limit to -1; what became of a job stands in its attempts and events.",
    ),
    _Rule(
        3, "guard_cycle", 0.5, lambda value: value in (0.25, 0.5, 1),
        "the guard counts down in 32-bit floats, and with a step that these do not hold exactly it never replaces a worker that hangs",
        "Set guard_cycle to 0.25, 0.5 or 1.",
    ),
    _Rule(
        4, "timeout", None, lambda value: type(value) is int and value == -1,
        "a worker's ticket lasts for as long as the worker does: a time-out kills it with all its attempts, and None crashes each new one",
        "Set timeout to -1; each job has a time-out of its own (timeout_seconds of its definition).",
    ),
    _Rule(
        6, "broker_class", None, lambda value: value == BROKER,
        "workers would wait for tasks of django-q2, which nobody makes, and no job would run",
        f"Set broker_class to {BROKER!r}.",
    ),
    _Rule(
        7, "recycle", 500, lambda value: value == 1,
        "a worker process that has ended its work would take up the next ticket with what the last one left behind",
        "Set recycle to 1; how long a worker process lives is ENGINE_RECYCLE_ATTEMPTS.",
    ),
    _Rule(
        8, "bulk", 1, lambda value: value == 1,
        "tickets would be handed over in packs, so that some workers stay without",
        "Set bulk to 1.",
    ),
)  # fmt: skip


@register(TAG)
def check_settings(**_: Any) -> list[CheckMessage]:
    """Everything that is wrong, at once."""
    checks = (_clusters, _lane_name, _pool, _open_files, _credential_keys, _lease, _default_model)
    return [message for check in checks for message in check()]


def _error(number: int, trouble: str, hint: str) -> Error:
    return Error(trouble, hint=hint, id=f"runtime_jobs.E{number:03}")


def _clusters() -> Iterator[CheckMessage]:
    """Each lane's cluster, as django-q2 will see it."""
    common: Mapping[str, Any] = getattr(settings, "Q_CLUSTER", {})
    clusters = common.get("ALT_CLUSTERS")
    if isinstance(clusters, dict) and set(clusters) == set(settings.ENGINE_LANES):
        for lane, own in clusters.items():
            yield from _cluster(lane, {**common, **own})
        return
    found = ", ".join(map(str, clusters)) if isinstance(clusters, dict) else ""
    yield _error(
        10,
        f"ALT_CLUSTERS of Q_CLUSTER has {found or 'no lane'}, ENGINE_LANES has {', '.join(settings.ENGINE_LANES)}: the rest runs no jobs.",
        "Give ALT_CLUSTERS one entry for each name in ENGINE_LANES.",
    )


def _cluster(lane: str, cluster: Mapping[str, Any]) -> Iterator[CheckMessage]:
    for rule in _RULES:
        value = cluster.get(rule.key, rule.default)
        if not rule.holds(value):
            yield _error(rule.number, f"Q_CLUSTER, lane {lane}: {rule.key} is {value!r}: {rule.trouble}.", rule.hint)
    workers = cluster.get("workers") or os.cpu_count() or 1
    limit = cluster.get("queue_limit", workers**2)
    if limit < 2 * workers:
        yield _error(
            5,
            f"Q_CLUSTER, lane {lane}: queue_limit is {limit} with {workers} workers: a stop would wait for ever for room in the queue.",
            f"Set queue_limit to {2 * workers} or more: a waiting ticket and a stop for each worker.",
        )


def _lane_name() -> Iterator[CheckMessage]:
    name = os.environ.get("Q_CLUSTER_NAME", "")
    if name and name not in settings.ENGINE_LANES:
        lanes = " or ".join(settings.ENGINE_LANES)
        yield _error(
            11,
            f"Q_CLUSTER_NAME is {name!r}, which is no lane: its cluster would look alive and have nothing to do.",
            f"Set Q_CLUSTER_NAME to {lanes}, not {name!r}.",
        )


def _pool() -> Iterator[CheckMessage]:
    for alias, database in settings.DATABASES.items():
        if database.get("OPTIONS", {}).get("pool"):
            yield _error(
                9,
                f"DATABASES[{alias!r}] has a pool in its OPTIONS: the workers, which are forks, would share its sockets and mix answers.",
                "Remove pool. A worker lends ENGINE_CONNECTIONS connections to its attempts; for more put PgBouncer in front.",
            )


def _open_files() -> Iterator[CheckMessage]:
    """Each attempt has a socket open while its call runs."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.ENGINE_CONCURRENCY + settings.ENGINE_CONNECTIONS + SPARE_FILES
    if limit != resource.RLIM_INFINITY and needed > limit:
        yield _error(
            12,
            f"ENGINE_CONCURRENCY is {settings.ENGINE_CONCURRENCY:,}: a worker may need {needed:,} open files, of which it gets {limit:,}.",
            f"Lower ENGINE_CONCURRENCY, or raise the limit where the engine starts: ulimit -n {needed}, LimitNOFILE= of its unit.",
        )


def _credential_keys() -> Iterator[CheckMessage]:
    try:
        key_ring()
    except ImproperlyConfigured as error:
        yield _error(
            13,
            f"{error} No provider key can be stored or read.",
            "Set CREDENTIAL_KEYS to id:base64 of 32 bytes, comma-separated; the first encrypts, all decrypt.",
        )


def _lease() -> Iterator[CheckMessage]:
    """A lease is renewed at a quarter of its length; shorter than the keeper's own step it lapses while its holder is well."""
    lease, least = settings.ENGINE_LEASE_SECONDS, 4 * RENEWAL_TICK_SECONDS
    if lease < least:
        yield _error(
            14,
            f"ENGINE_LEASE_SECONDS is {lease:g}: leases would lapse between two renewals, and jobs would run twice.",
            f"Set ENGINE_LEASE_SECONDS to {least:g} or more; 30 is usual.",
        )


def _default_model() -> Iterator[CheckMessage]:
    """Needed as soon as a definition leaves its model to the settings."""
    for setting, attribute in (("DEFAULT_MODEL_PROVIDER", "model_provider"), ("DEFAULT_MODEL_NAME", "model_name")):
        undecided = [name for name in registry.job_types() if not getattr(registry.get(name), attribute)]
        if undecided and not getattr(settings, setting):
            yield _error(
                15,
                f"{setting} is empty and these definitions rely on it, so no job of theirs can be created: {', '.join(undecided)}.",
                f"Set {setting}, or {attribute} in the definition.",
            )
