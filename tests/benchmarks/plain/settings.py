"""Ours, without what stands around a view."""

from config.settings import *  # noqa: F403

MIDDLEWARE = []
ROOT_URLCONF = "tests.benchmarks.plain.urls"
# As runtime_jobs/prepared.py asks for on each connection.
DATABASES["default"]["OPTIONS"]["options"] = "-c plan_cache_mode=force_generic_plan"  # noqa: F405
