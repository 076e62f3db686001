"""What the holder of a lease may see of its job: the input, and the key for the model call. Nothing else of it, and nobody else."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import BooleanField, ExpressionWrapper, Q
from django.db.models.functions import Now
from django.views.decorators.debug import sensitive_variables

from runtime_jobs.errors import AttemptError, CredentialUnavailable, JobCancelled, LockLost
from runtime_jobs.model_call import ProviderTarget
from runtime_jobs.models import AiJobAttempt
from runtime_jobs.services import credentials
from runtime_jobs.services.events import Actor, NewEvent, record
from runtime_jobs.services.pulls import ended_error, must_exist
from runtime_jobs.services.settlements import Fence
from runtime_jobs.services.tokens import token_hash
from runtime_jobs.services.transitions import lock
from runtime_jobs.states import TERMINAL, JobStatus, Lane


class LeaseLapsed(LockLost):
    """The token is the job's, but its lease has run out: a heartbeat brings it back, if nobody was faster."""


def attempt_of(fence: Fence, job_types: Collection[str], *also: str) -> Any:
    """The attempt that this token belongs to, with its job (and the relations named in `also`), its lease's state and the database's time.

    Raises JobNotFound, and LockLost when the token is none of this attempt or somebody else's.
    """
    attempt = (
        AiJobAttempt.objects.select_related("job", *also)
        .annotate(clock=Now(), live=ExpressionWrapper(Q(job__lock_until__gt=Now()), BooleanField()))
        .filter(
            job_id=fence.job_id,
            attempt_no=fence.attempt_no,
            lock_token=token_hash(fence.token),
            worker=fence.worker,
            job__lane=Lane.RUNTIME,
            job__job_type__in=job_types,
        )
        .first()
    )
    if attempt is None:
        must_exist(fence.job_id, job_types)
        raise LockLost("This token never was, or no longer is, the one of this attempt.")
    return attempt


def _must_be_live(attempt: Any) -> None:
    """Raises LockLost, JobCancelled, JobAlreadyFinished, LeaseLapsed, in the order of the checks."""
    job = attempt.job
    if job.lock_token != attempt.lock_token:
        raise LockLost("The job has been taken over.")
    if job.status in TERMINAL:
        raise ended_error(job.status)
    if not attempt.live:
        raise LeaseLapsed("The lease has run out. Send a heartbeat first.", leaseExpired=True)


@dataclass(frozen=True)
class Input:
    """The immutable input of a job."""

    snapshot_id: UUID
    schema_version: str
    payload: Any
    content_hash: str
    created_at: datetime


def snapshot(fence: Fence, job_types: Collection[str]) -> Input:
    """Raises JobNotFound, LockLost, LeaseLapsed, JobCancelled, JobAlreadyFinished."""
    attempt = attempt_of(fence, job_types, "job__snapshot")
    _must_be_live(attempt)
    stored = attempt.job.snapshot
    return Input(stored.pk, stored.input_schema_version, stored.payload, stored.content_hash, stored.created_at)


@dataclass(frozen=True)
class Key:
    """A provider's key on its way to the runtime that calls it."""

    credential_id: UUID
    target: ProviderTarget
    expires_in: timedelta  # until the attempt's deadline


@sensitive_variables()
def resolve_key(fence: Fence, job_types: Collection[str]) -> Key:
    """The key of the one credential that the job names; who got it for which job, and when, is recorded before.

    Raises as `snapshot`, JobCancelled also when a cancel is only requested, and CredentialUnavailable.
    """
    attempt = attempt_of(fence, job_types)
    with transaction.atomic():
        # Locked, so that a cancel comes before this look or after it.
        job: Any = lock(fence.job_id)
        attempt.job = job
        attempt.live = AiJobAttempt.objects.filter(pk=attempt.pk, job__lock_until__gt=Now()).exists()
        _must_be_live(attempt)
        if job.status == JobStatus.CANCEL_REQUESTED:
            raise JobCancelled("A cancel of the job was requested: no model call is wanted.", status=str(job.status))
        try:
            target = credentials.resolve(job.credential_id, mode=job.api_key_mode, user_id=job.user_id, model=job.model_name)
        except AttemptError:
            raise CredentialUnavailable("The key for the model call is missing, revoked or unreadable.") from None
        record([NewEvent(job.pk, "credential.resolved", job.attempt_no, Actor("", fence.worker), {"credential": str(job.credential_id)})])
    left = job.locked_at + timedelta(seconds=job.timeout_seconds) - attempt.clock
    return Key(job.credential_id, target, max(left, timedelta()))
