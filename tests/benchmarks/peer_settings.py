"""Django's settings for the peers: django-q2 with its ORM broker as it comes, and the ORM for procrastinate's tasks."""

import os

import dj_database_url

SECRET_KEY = "benchmarks"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"], conn_max_age=None)}
INSTALLED_APPS = ["django.contrib.contenttypes", "django_q", "tests.benchmarks.app"]
# The defaults but for what the ORM broker needs to be named. BENCH_SAVE_LIMIT is django-q2's advice for throughput, when set.
Q_CLUSTER = {"name": "bench", "orm": "default", "workers": 2, "retry": 3_600, "timeout": 600}
if "BENCH_SAVE_LIMIT" in os.environ:
    Q_CLUSTER["save_limit"] = int(os.environ["BENCH_SAVE_LIMIT"])
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"django-q": {"handlers": ["stderr"], "level": "WARNING", "propagate": False}},
}
