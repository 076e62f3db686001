"""What columns are called, in the language of whoever looks.

Set on the fields here and not in models/: there it would be a migration of some eighty columns that changes no table. Migrations read the
name that a field was given where it was declared, which this leaves alone.
"""

from django.apps import apps
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

NAMES = {
    "id": _("id"), "actor_name": _("who"), "api_key_mode": _("whose key"), "attempt_no": _("attempt"), "base_url": _("address"),
    "base_url_host": _("host"), "cached_input_tokens": _("cached input tokens"), "call_no": _("call"), "closed_at": _("closed"),
    "closed_by": _("by whom"), "cost_usd": _("cost (USD)"), "created_at": _("created"), "credential": _("credential"),
    "credential_mode": _("whose key"), "data": _("data"), "delivered_at": _("delivered"), "dispatch": _("sent"), "draining": _("draining"),
    "ended_at": _("ended"), "error_code": _("error"), "event": _("event"), "expires_at": _("expires"), "fingerprint": _("fingerprint"),
    "finish_reason": _("finish reason"), "handler": _("handler"), "http_status": _("HTTP status"), "input_tokens": _("input tokens"),
    "instance_pattern": _("instances"), "internal_error": _("internal error"), "invocation_id": _("invocation"), "job": _("job"),
    "job_id": _("job"), "job_type": _("job type"), "job_types": _("job types"), "key": _("of what"), "key_id": _("key id"),
    "kind": _("kind"),
    "labels": _("labels"), "lane": _("lane"), "last_error": _("last error"), "last_seen_at": _("last seen"), "last_used_at": _("last used"),
    "latency_ms": _("milliseconds"), "model_requested": _("model asked for"), "model_used": _("model that answered"), "name": _("name"),
    "next_try_at": _("next try"), "outcome": _("outcome"), "output_hash": _("hash"), "output_tokens": _("output tokens"),
    "parked_at": _("parked"), "provider": _("provider"), "provider_error_code": _("provider's error code"),
    "provider_request_id": _("provider's request id"), "reason": _("reason"), "reasoning_tokens": _("reasoning tokens"),
    "reported_started_at": _("began, as reported"), "request_bytes": _("bytes sent"), "response_bytes": _("bytes received"),
    "retry_after_ms": _("retry after (ms)"), "retryable": _("may be retried"), "revoked_at": _("revoked"), "schema_version": _("schema"),
    "scopes": _("scopes"), "seq": _("number"), "started_at": _("started"), "status": _("status"), "subject_id": _("to which"),
    "subject_type": _("to what"), "tries": _("tries"), "until": _("until"), "usage_raw": _("the provider's numbers"), "user": _("user"),
    "version": _("version"), "warnings": _("warnings"), "worker": _("worker"),
}  # fmt: skip

# Labels of choices, which are made from their values (models/base.py): written down for the catalogue.
CHOICES = (gettext_noop("not sent"), gettext_noop("maybe sent"), gettext_noop("sent"), gettext_noop("platform"), gettext_noop("user"))

for _model in apps.get_app_config("runtime_jobs").get_models():
    for _field in _model._meta.concrete_fields:
        if _field.name in NAMES:
            _field.verbose_name = NAMES[_field.name]
