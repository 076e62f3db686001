"""Creating, rerunning and cancelling jobs: what applications and staff ask for."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db import connection, transaction
from django.db.models.functions import Now

from runtime_jobs import registry
from runtime_jobs.errors import (
    ErrorCode,
    IdempotencyConflict,
    InvalidPayload,
    InvalidRequest,
    JobNotCancellable,
    JobNotFound,
    JobNotRerunnable,
    PayloadTooLarge,
)
from runtime_jobs.models import AiJobSnapshot, AiModelCredential, AiRuntimeJob
from runtime_jobs.registry import JobDefinition
from runtime_jobs.services import credentials, fairness, notify
from runtime_jobs.services.events import Actor, NewEvent, record
from runtime_jobs.services.payloads import canonical, digest
from runtime_jobs.services.transitions import error_fields, lock, step
from runtime_jobs.states import TERMINAL, WAITING, ApiKeyMode, JobStatus, Lane

_TEXT_BOUNDS = {
    "target_type": (1, 100),
    "target_id": (1, 200),
    "idempotency_key": (1, 200),
    "model_provider": (1, 50),
    "model_name": (1, 200),
}
_NUMBER_BOUNDS = {"priority": (0, 9), "max_retry_count": (0, 20), "timeout_seconds": (1, 86_400)}
_REQUIRED = frozenset({"target_type", "target_id", "priority"})


def create_job(
    *,
    user: AbstractBaseUser,
    job_type: str,
    payload: Any,
    target_type: str,
    target_id: str,
    idempotency_key: str | None = None,
    priority: int = 5,
    api_key_mode: ApiKeyMode | str = ApiKeyMode.PLATFORM,
    credential: AiModelCredential | None = None,
    model_provider: str | None = None,
    model_name: str | None = None,
    max_retry_count: int | None = None,
    timeout_seconds: int | None = None,
    traceparent: str = "",
    actor: Actor | None = None,
) -> AiRuntimeJob:
    """Create a job in the caller's transaction; workers are told after its commit.

    `payload` is JSON that fits the definition's input schema, at most JOB_MAX_SNAPSHOT_BYTES. `priority` 0 to 9, higher is sooner. What is
    None comes from the definition. The same `idempotency_key` with the same request gives the same job, however many ask at once.

    Raises UnknownJobType, InvalidRequest, InvalidPayload, PayloadTooLarge, CredentialUnavailable, and IdempotencyConflict when the key
    belongs to another request. Nothing is stored then.
    """
    definition = registry.get(job_type)
    request = {
        "target_type": target_type,
        "target_id": target_id,
        "idempotency_key": idempotency_key,
        "priority": priority,
        "model_provider": model_provider,
        "model_name": model_name,
        "max_retry_count": max_retry_count,
        "timeout_seconds": timeout_seconds,
    }
    _check_bounds(request)
    mode = _mode(api_key_mode)
    clean, text = canonical(payload)
    _check_payload(definition, clean, text)
    fingerprint = digest(text, job_type, str(user.pk), mode, str(credential and credential.pk), canonical(request)[1])

    if idempotency_key is not None and (existing := _same_request(idempotency_key, fingerprint)):
        return existing
    provider = model_provider or definition.model_provider or settings.DEFAULT_MODEL_PROVIDER
    job = AiRuntimeJob(
        user_id=user.pk,
        job_type=job_type,
        lane=definition.lane,
        target_type=target_type,
        target_id=target_id,
        priority=priority,
        idempotency_key=idempotency_key,
        request_fingerprint=fingerprint,
        api_key_mode=mode,
        credential=credentials.choose(mode=mode, user_id=user.pk, provider=provider, credential=credential),
        model_provider=provider,
        model_name=model_name or definition.model_name or settings.DEFAULT_MODEL_NAME,
        prompt_version=definition.prompt_version,
        input_schema_version=definition.input_schema_version,
        output_schema_version=definition.output_schema_version,
        max_retry_count=definition.max_retry_count if max_retry_count is None else max_retry_count,
        timeout_seconds=timeout_seconds or definition.timeout_seconds,
        traceparent=traceparent[:55],
    )
    with transaction.atomic():
        job.snapshot_id = _store_snapshot(definition.input_schema_version, clean, text)
        inserted = _insert(job, actor or Actor.of(user), "job.created")
    if not inserted:
        # Somebody else's insert with this key was committed while ours waited for it.
        existing = _same_request(str(idempotency_key), fingerprint)
        if existing is None:
            raise IdempotencyConflict("The idempotency key was in use and is free again. Ask once more.")
        return existing
    job.refresh_from_db()
    return job


@dataclass(frozen=True)
class Rerun:
    job: AiRuntimeJob
    created: bool  # False: an unfinished rerun was there already


def rerun_job(job_id: UUID, *, actor: Actor, reason: str = "") -> Rerun:
    """A new job from the same snapshot, for the same user, with counters at zero and `retried_from_job` set. The old one stays as it is.

    Model, key, priority and budgets are the old job's; prompt and output schema are the definition's of today. While an unfinished rerun
    exists, that one is returned. Raises JobNotFound, JobNotRerunnable (naming the state), UnknownJobType, CredentialUnavailable.
    """
    with transaction.atomic():
        old = lock(job_id)
        if old is None:
            raise JobNotFound(f"There is no job {job_id}.")
        if old.status not in TERMINAL:
            raise JobNotRerunnable(f"The job is {old.status}; only a job that has ended can be rerun.", status=old.status)
        # The old row is locked: two reruns come here one after the other. The unique index stands behind it.
        unfinished = AiRuntimeJob.objects.filter(retried_from_job=old).exclude(status__in=TERMINAL).first()
        if unfinished is not None:
            return Rerun(unfinished, created=False)
        job = _copy_for_rerun(old, registry.get(old.job_type))
        _insert(job, actor, "job.created", {"retried_from_job": str(old.pk), "reason": reason})
        record([NewEvent(old.pk, "job.rerun", actor=actor, data={"rerun": str(job.pk), "reason": reason})])
        job.refresh_from_db()
    return Rerun(job, created=True)


def cancel_job(job_id: UUID, *, actor: Actor, reason: str = "") -> AiRuntimeJob:
    """Cancel a waiting job at once; ask a running one to stop (cancel_requested), which its worker sees within a second.

    Asking twice changes nothing more. Raises JobNotFound, and JobNotCancellable, naming the state, when it has ended.
    """
    with transaction.atomic():
        job = lock(job_id)
        if job is None:
            raise JobNotFound(f"There is no job {job_id}.")
        if job.status in TERMINAL:
            raise JobNotCancellable(f"The job is {job.status} already; there is nothing to cancel.", status=job.status)
        wish = {"cancel_requested_at": Now(), "cancel_requested_by": actor.name, "cancel_reason": reason[:500]}
        if job.status in WAITING:
            step(
                job, JobStatus.CANCELLED, "job.cancelled", actor=actor, data={"reason": reason},
                **wish, **error_fields(ErrorCode.CANCELLED, ""),
            )  # fmt: skip
        elif job.status == JobStatus.RUNNING:
            step(job, JobStatus.CANCEL_REQUESTED, "job.cancel_requested", actor=actor, data={"reason": reason}, **wish)
            notify.cancel_requested(job.pk)
        job.refresh_from_db()
    return job


def _check_bounds(request: dict[str, Any]) -> None:
    for name, (least, most) in _TEXT_BOUNDS.items():
        value = request[name]
        if _is_given(name, value) and (not isinstance(value, str) or not least <= len(value) <= most):
            raise InvalidRequest(f"{name} must be a text of {least} to {most} characters.", field=name)
    for name, (low, high) in _NUMBER_BOUNDS.items():
        value = request[name]
        if _is_given(name, value) and (not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high):
            raise InvalidRequest(f"{name} must be a whole number from {low} to {high}.", field=name)


def _is_given(name: str, value: Any) -> bool:
    """None is no value where there is a default for it."""
    return value is not None or name in _REQUIRED


def _mode(value: ApiKeyMode | str) -> ApiKeyMode:
    try:
        return ApiKeyMode(value)
    except ValueError:
        raise InvalidRequest(f"api_key_mode must be platform or user, not {value!r}.", field="api_key_mode") from None


def _check_payload(definition: JobDefinition, clean: Any, text: str) -> None:
    size = len(text.encode())
    if size > settings.JOB_MAX_SNAPSHOT_BYTES:
        raise PayloadTooLarge(
            f"The input has {size:,} bytes; the limit is {settings.JOB_MAX_SNAPSHOT_BYTES:,} (JOB_MAX_SNAPSHOT_BYTES).",
            max_bytes=settings.JOB_MAX_SNAPSHOT_BYTES,
        )
    issues = definition.compiled_input[definition.input_schema_version].issues(clean)
    if issues:
        raise InvalidPayload(
            f"The input does not fit the schema of {definition.job_type}: {issues[0].path or '/'}: {issues[0].message}",
            issues=[issue.as_json() for issue in issues],
        )


def _same_request(idempotency_key: str, fingerprint: str) -> AiRuntimeJob | None:
    existing = AiRuntimeJob.objects.filter(idempotency_key=idempotency_key).first()
    if existing is not None and existing.request_fingerprint != fingerprint:
        raise IdempotencyConflict(
            "This idempotency key belongs to a job that was made from another request. Use a new key, or send the same request.",
            idempotency_key=idempotency_key,
        )
    return existing


def _store_snapshot(schema_version: str, clean: Any, text: str) -> UUID:
    """The id of the row with this content, made if need be, and kept from `prune` until our transaction ends."""
    content_hash = digest(schema_version, text)
    while True:
        with connection.cursor() as cursor:
            # FOR KEY SHARE keeps it from `prune` without making creates with the same content wait for each other.
            cursor.execute("SELECT id FROM ai_job_snapshot WHERE content_hash = %s FOR KEY SHARE", [content_hash])
            row = cursor.fetchone()
        if row is not None:
            return row[0]  # type: ignore[no-any-return]
        made = AiJobSnapshot(input_schema_version=schema_version, payload=clean, content_hash=content_hash, size_bytes=len(text.encode()))
        AiJobSnapshot.objects.bulk_create([made], ignore_conflicts=True)


def _insert(job: AiRuntimeJob, actor: Actor, event: str, data: dict[str, Any] | None = None) -> bool:
    """Insert job and event; False when the idempotency key was taken meanwhile."""
    lane = Lane(job.lane)
    job.sort_at = fairness.place(lane=lane, user_id=job.user_id, priority=job.priority)
    AiRuntimeJob.objects.bulk_create([job], ignore_conflicts=job.idempotency_key is not None)
    if job.idempotency_key is not None and not AiRuntimeJob.objects.filter(pk=job.pk).exists():
        return False
    record([NewEvent(job.pk, event, actor=actor, data={"status": str(JobStatus.QUEUED), **(data or {})})])
    notify.wake(lane)
    return True


def _copy_for_rerun(old: AiRuntimeJob, definition: JobDefinition) -> AiRuntimeJob:
    credential = old.credential if old.credential.revoked_at is None or old.api_key_mode == ApiKeyMode.USER else None
    return AiRuntimeJob(
        user_id=old.user_id,
        job_type=old.job_type,
        lane=definition.lane,
        target_type=old.target_type,
        target_id=old.target_id,
        snapshot_id=old.snapshot_id,
        priority=old.priority,
        request_fingerprint=old.request_fingerprint,
        api_key_mode=old.api_key_mode,
        credential=credentials.choose(
            mode=ApiKeyMode(old.api_key_mode), user_id=old.user_id, provider=old.model_provider, credential=credential
        ),
        model_provider=old.model_provider,
        model_name=old.model_name,
        prompt_version=definition.prompt_version,
        input_schema_version=old.input_schema_version,
        output_schema_version=definition.output_schema_version,
        max_retry_count=old.max_retry_count,
        timeout_seconds=old.timeout_seconds,
        traceparent=old.traceparent,
        retried_from_job=old,
    )
