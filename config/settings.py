"""All settings, read from the environment. README has the table of variables.

Development mode (DEBUG) is on only where nothing is configured: as soon as SECRET_KEY or DATABASE_URL is set it is off unless asked for,
so a forgotten variable cannot open a production system.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from config import env
from config.logs import logging_config

# Shown with each worker; set it to what you deploy, such as a commit.
VERSION = env.text("VERSION", "development")

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = env.folder("DATA_DIR", BASE_DIR / ".data")

DEBUG = env.flag("DEBUG", default=not (env.text("SECRET_KEY") or env.text("DATABASE_URL")))

# --- secrets ---------------------------------------------------------------------------------------------------------------------

DEVELOPMENT_SECRET_KEY = "development-only-secret-key-that-no-production-system-accepts"  # noqa: S105
DEVELOPMENT_CREDENTIAL_KEYS = "dev:ZGV2ZWxvcG1lbnQtb25seS1jcmVkZW50aWFsLWtleSE="

SECRET_KEY = env.text("SECRET_KEY", DEVELOPMENT_SECRET_KEY if DEBUG else "")
SECRET_KEY_FALLBACKS = env.words("SECRET_KEY_FALLBACKS")
# The key ring for provider keys at rest: "id:base64 of 32 bytes", comma-separated; the first encrypts, all decrypt.
CREDENTIAL_KEYS = env.words("CREDENTIAL_KEYS", (DEVELOPMENT_CREDENTIAL_KEYS,) if DEBUG else ())

if not DEBUG:
    if not SECRET_KEY or SECRET_KEY == DEVELOPMENT_SECRET_KEY:
        raise ImproperlyConfigured(
            "Set SECRET_KEY to a random text of 50 characters or more (or DEBUG=1 on a developer's machine). To make one: "
            "python -c 'import secrets; print(secrets.token_urlsafe(50))'"
        )
    if not CREDENTIAL_KEYS or DEVELOPMENT_CREDENTIAL_KEYS in CREDENTIAL_KEYS:
        raise ImproperlyConfigured(
            "Set CREDENTIAL_KEYS to a key ring of your own, id:base64 of 32 bytes. To make one: "
            "python -c 'import base64, secrets; print(\"k1:\" + base64.b64encode(secrets.token_bytes(32)).decode())'"
        )

# --- database --------------------------------------------------------------------------------------------------------------------

if not env.text("DATABASE_URL"):
    if not DEBUG:
        raise ImproperlyConfigured("Set DATABASE_URL=postgresql://user:password@host:5432/name (PostgreSQL 15 or newer).")
    from config.embedded import start_or_join

    # In the environment, so that child processes use the same server instead of each joining it.
    os.environ["DATABASE_URL"] = start_or_join(DATA_DIR / "postgres").get_uri()

# No psycopg pool: after a fork its sockets would be shared between processes (django-q2 forks). The engine lends its own connections.
DATABASES = {
    "default": dj_database_url.parse(
        env.text("DATABASE_URL"),
        conn_max_age=env.whole("DATABASE_CONN_MAX_AGE", 60, least=0, most=3600),
        conn_health_checks=True,
    )
}
# Only what runtime_jobs/prepared.py asks for is prepared; Django's None would forbid even that.
DATABASES["default"].setdefault("OPTIONS", {})["prepare_threshold"] = 1_000_000
if DATABASES["default"]["ENGINE"] != "django.db.backends.postgresql":
    raise ImproperlyConfigured("DATABASE_URL must name a PostgreSQL database: postgresql://user:password@host:5432/name")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- applications ----------------------------------------------------------------------------------------------------------------

INSTALLED_APPS = [
    "config.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "csp",
    "django_filters",
    "rest_framework",
    "drf_spectacular",
    "pgtrigger",
    "django_q",
    "runtime_jobs",
    "runtime_jobs.synthetic",
    # `lintmigrations`, which comes with the `dev` extra.
    *(("django_migration_linter",) if DEBUG and find_spec("django_migration_linter") else ()),
    *env.words("EXTRA_APPS"),
]
# Only what is ours is linted: django-q2's migrations are not ours to change.
MIGRATION_LINTER_OPTIONS = {"exclude_apps": ["django_q"], "no_cache": True}

MIDDLEWARE = [
    "runtime_protocol.envelope.EnvelopeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "config.back_office.ContentPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "config.back_office.BackOfficeMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# Of the back office; everything else speaks LANGUAGE_CODE (config/back_office.py).
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "Simplified Chinese")]
# One catalogue for all that is ours, templates/ and config/ included.
LOCALE_PATHS = [BASE_DIR / "runtime_jobs" / "locale"]
LANGUAGE_COOKIE_HTTPONLY = True
LANGUAGE_COOKIE_SAMESITE = "Lax"
LANGUAGE_COOKIE_AGE = 365 * 24 * 3600
LANGUAGE_COOKIE_SECURE = not DEBUG
TIME_ZONE = env.text("TIME_ZONE", "UTC")
USE_I18N = True
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = env.folder("STATIC_ROOT", BASE_DIR / "staticfiles")
WHITENOISE_USE_FINDERS = WHITENOISE_AUTOREFRESH = DEBUG
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

# --- security --------------------------------------------------------------------------------------------------------------------

ALLOWED_HOSTS = env.words("ALLOWED_HOSTS", ("localhost", "127.0.0.1", "[::1]") if DEBUG else ())
CSRF_TRUSTED_ORIGINS = env.words("CSRF_TRUSTED_ORIGINS")
LOGIN_URL = "admin:login"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not DEBUG
SESSION_COOKIE_HTTPONLY = True
X_FRAME_OPTIONS = "DENY"
# Nothing but files of ours: no inline script or style, no frame, no foreign form target. Django's debug pages are exempt (django-csp).
CONTENT_SECURITY_POLICY = {
    "EXCLUDE_URL_PREFIXES": ["/internal/"],
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    },
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_SSL_REDIRECT = env.flag("SECURE_SSL_REDIRECT", default=not DEBUG)
SECURE_REDIRECT_EXEMPT = [r"^internal/", r"^healthz$"]
SECURE_HSTS_SECONDS = env.whole("SECURE_HSTS_SECONDS", 0 if DEBUG else 31_536_000, least=0, most=63_072_000)
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = SECURE_HSTS_SECONDS > 0
# Only where a proxy of yours sets the header on every request: else a client could claim https.
BEHIND_TLS_PROXY = env.flag("BEHIND_TLS_PROXY", default=False)
if BEHIND_TLS_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# --- jobs ------------------------------------------------------------------------------------------------------------------------

JOB_MAX_SNAPSHOT_BYTES = env.whole("JOB_MAX_SNAPSHOT_BYTES", 1_048_576, least=1_024, most=16_777_216)
JOB_RETENTION_DAYS = env.whole("JOB_RETENTION_DAYS", 90, least=1, most=3_650)
RETRY_BASE_SECONDS = env.number("RETRY_BASE_SECONDS", 2, least=0, most=3_600)
RETRY_CAP_SECONDS = env.number("RETRY_CAP_SECONDS", 600, least=0, most=86_400)
# So many failures of a provider's model in a row open its breaker; after each rest one job is tried.
BREAKER_FAILURES = env.whole("BREAKER_FAILURES", 5, least=1, most=1_000)
BREAKER_REST_SECONDS = env.number("BREAKER_REST_SECONDS", 15, least=0.1, most=3_600)
DEFAULT_MODEL_PROVIDER = env.text("DEFAULT_MODEL_PROVIDER", "simulator")
DEFAULT_MODEL_NAME = env.text("DEFAULT_MODEL_NAME", "simulator-1")

# --- engine ----------------------------------------------------------------------------------------------------------------------

ENGINE_LANES = ("interactive", "background")
ENGINE_WORKERS = env.whole("ENGINE_WORKERS", 2, least=1, most=64)
ENGINE_CONCURRENCY = env.whole("ENGINE_CONCURRENCY", 20, least=1, most=1_000)
ENGINE_CONNECTIONS = env.whole("ENGINE_CONNECTIONS", 4, least=1, most=32)
ENGINE_LEASE_SECONDS = env.number("ENGINE_LEASE_SECONDS", 30, least=1, most=900)
ENGINE_POLL_SECONDS = env.number("ENGINE_POLL_SECONDS", 1, least=0.05, most=60)
ENGINE_DRAIN_SECONDS = env.number("ENGINE_DRAIN_SECONDS", 20, least=0, most=3_600)
ENGINE_WATCHDOG_SECONDS = env.number("ENGINE_WATCHDOG_SECONDS", 60, least=5, most=3_600)
ENGINE_RECYCLE_ATTEMPTS = env.whole("ENGINE_RECYCLE_ATTEMPTS", 10_000, least=1, most=1_000_000)
UNKNOWN_JOB_TYPE_GRACE_SECONDS = env.number("UNKNOWN_JOB_TYPE_GRACE_SECONDS", 60, least=0, most=86_400)
# Provider endpoints on this machine over plain http: for the simulator and local models on a developer's machine.
ALLOW_LOOPBACK_PROVIDERS = env.flag("ALLOW_LOOPBACK_PROVIDERS", default=DEBUG)

# --- runtime protocol ------------------------------------------------------------------------------------------------------------

# What a runtime's lease is when it does not ask for another length, and between which bounds it may ask.
RUNTIME_LEASE_SECONDS = env.number("RUNTIME_LEASE_SECONDS", 60, least=1, most=900)
RUNTIME_MIN_LEASE_SECONDS = env.number("RUNTIME_MIN_LEASE_SECONDS", 10, least=1, most=900)
RUNTIME_MAX_LEASE_SECONDS = env.number("RUNTIME_MAX_LEASE_SECONDS", 900, least=10, most=3_600)
RUNTIME_OFFER_SECONDS = env.number("RUNTIME_OFFER_SECONDS", 10, least=1, most=60)
RUNTIME_MAX_BODY_BYTES = env.whole("RUNTIME_MAX_BODY_BYTES", 8_388_608, least=65_536, most=67_108_864)
# Requests a second per token and web process; twice as many in a burst.
RUNTIME_RATE_PER_SECOND = env.number("RUNTIME_RATE_PER_SECOND", 500, least=0.1, most=100_000)
# Per web process. A long poll that waits occupies one of granian's blocking threads: leave some for everybody else.
RUNTIME_MAX_WAITERS = env.whole(
    "RUNTIME_MAX_WAITERS", env.whole("GRANIAN_BLOCKING_THREADS", 8, least=1, most=4_096) * 3 // 4, least=0, most=4_096
)
RUNTIME_CONNECTIONS = env.whole("RUNTIME_CONNECTIONS", 4, least=2, most=64)

# Each key is there because of a measured trap: a waiting ticket a worker and room for as many stops (queue_limit, bulk), no scheduler,
# nothing saved, no redelivery, a guard cycle that float32 holds exactly, a fresh process after each ticket (recycle).
_CLUSTER = {
    "broker_class": "runtime_jobs.engine.broker.TicketBroker",
    "workers": ENGINE_WORKERS,
    "queue_limit": 2 * ENGINE_WORKERS,
    "bulk": 1,
    "scheduler": False,
    "save_limit": -1,
    "timeout": -1,
    "retry": 2_147_483_647,
    "max_attempts": 1,
    "ack_failures": True,
    "recycle": 1,
    "guard_cycle": 0.5,
    "catch_up": False,
    "poll": 1,
}
Q_CLUSTER = {"name": "ai-jobs", **_CLUSTER, "ALT_CLUSTERS": {lane: dict(_CLUSTER) for lane in ENGINE_LANES}}

# --- interfaces ------------------------------------------------------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    # `?format=` would be a query parameter of every view, which none of ours has.
    "URL_FORMAT_OVERRIDE": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "AI jobs",
    "DESCRIPTION": "The user API: own jobs, their results, cancel.",
    "VERSION": "1.0",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SCHEMA_PATH_PREFIX": "/api",
    "PREPROCESSING_HOOKS": ["runtime_jobs.api.openapi.only_the_user_api"],
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    # Of both descriptions: drf-spectacular loads the names once in a process, for whichever is asked for first.
    "ENUM_NAME_OVERRIDES": {
        "JobStatus": "runtime_jobs.states.JobStatus",
        "Lane": "runtime_jobs.states.Lane",
        "JobErrorCode": "runtime_jobs.errors.ErrorCode",
        "ApiErrorCode": "runtime_jobs.api.errors.ERROR_CODES",
        "RuntimeJobStatus": "runtime_protocol.dto.choices.JOB_STATUSES",
        "RuntimeApiKeyMode": "runtime_protocol.dto.choices.KEY_MODES",
        "RuntimeResultStatus": "runtime_protocol.dto.choices.RESULT_STATUSES",
        "RuntimeHeartbeatDirective": "runtime_protocol.dto.choices.DIRECTIVES",
        "RuntimePollDirective": "runtime_protocol.dto.choices.POLL_DIRECTIVES",
        "RuntimeBatchHeartbeatDirective": "runtime_protocol.dto.choices.BATCH_DIRECTIVES",
        "RuntimeErrorCode": "runtime_protocol.dto.choices.ERROR_CODES",
    },
}

# --- logs ------------------------------------------------------------------------------------------------------------------------

LOGGING = logging_config(
    env.choice("LOG_FORMAT", "text", ("text", "json")),
    env.choice("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")),
)
