from typing import TYPE_CHECKING

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.errors import ErrorCode
from runtime_jobs.models.base import UuidModel, choices, delete_only_by_prune, no_truncate, sql_list
from runtime_jobs.models.credential import AiModelCredential
from runtime_jobs.models.snapshot import AiJobSnapshot
from runtime_jobs.states import LEASED, TERMINAL, TRANSITIONS, WAITING, ApiKeyMode, JobStatus, Lane

if TYPE_CHECKING:
    from runtime_jobs.models.result import AiRuntimeResult

_LEASED = Q(status__in=sorted(LEASED))
_WAITING = Q(status__in=sorted(WAITING))
_TERMINAL = Q(status__in=sorted(TERMINAL))


def _refuse(message: str, *arguments: str) -> str:
    """PL/pgSQL that refuses a row. As check_violation it reaches Django as IntegrityError, like the CHECKs beside it."""
    return f"RAISE EXCEPTION '{message}', {', '.join(arguments)} USING ERRCODE = 'check_violation';"


def _transition_guard() -> str:
    legal = " OR ".join(f"(OLD.status = '{old}' AND NEW.status IN ({sql_list(news)}))" for old, news in TRANSITIONS.items() if news)
    return f"IF NOT ({legal}) THEN {_refuse('job %: no step from % to %', 'OLD.id', 'OLD.status', 'NEW.status')} END IF; RETURN NULL;"


class AiRuntimeJob(UuidModel):
    """One AI job: who wants what done with which input, where it stands, and who works on it now.

    The row is the truth: whatever runs was claimed here by compare-and-set, and every later write names the claim's `lock_token`.
    Only services/ writes it.
    """

    # What is to be done, for whom. Never changes.
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="ai_jobs", db_index=False)
    job_type = models.CharField(max_length=100)
    lane = models.CharField(max_length=20, choices=choices(Lane))
    target_type = models.CharField(max_length=100)
    target_id = models.CharField(max_length=200)
    snapshot = models.ForeignKey(AiJobSnapshot, models.PROTECT, related_name="jobs")
    priority = models.PositiveSmallIntegerField(default=5)
    idempotency_key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001 - NULL is "none" for the unique index
    request_fingerprint = models.CharField(max_length=64)
    api_key_mode = models.CharField(max_length=20, choices=choices(ApiKeyMode))
    credential = models.ForeignKey(AiModelCredential, models.PROTECT, related_name="jobs")
    model_provider = models.CharField(max_length=50)
    model_name = models.CharField(max_length=200)
    prompt_version = models.CharField(max_length=50)
    input_schema_version = models.CharField(max_length=50)
    output_schema_version = models.CharField(max_length=50)
    max_retry_count = models.PositiveSmallIntegerField()
    timeout_seconds = models.PositiveIntegerField()
    retried_from_job = models.ForeignKey("self", models.PROTECT, null=True, blank=True, related_name="reruns", db_index=False)
    traceparent = models.CharField(max_length=55, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    # Where it stands.
    status = models.CharField(max_length=20, choices=choices(JobStatus), default=JobStatus.QUEUED)
    attempt_no = models.PositiveIntegerField(default=0)  # real executions, hence claims
    retry_count = models.PositiveSmallIntegerField(default=0)  # charged errors; lapses and releases have counters of their own
    lapse_count = models.PositiveSmallIntegerField(default=0)
    release_count = models.PositiveSmallIntegerField(default=0)
    available_at = models.DateTimeField(db_default=Now())  # when a retry is due
    sort_at = models.DateTimeField(db_default=Now())  # its place in the lane (services/fairness.py)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(db_default=Now())
    error_code = models.CharField(max_length=40, blank=True, default="", choices=choices(ErrorCode))
    error_message = models.CharField(max_length=200, blank=True, default="")  # the code's public sentence
    internal_error = models.TextField(blank=True, default="")  # staff only, redacted
    progress = models.PositiveSmallIntegerField(null=True, blank=True)
    progress_message = models.CharField(max_length=200, blank=True, default="")
    checkpoint = models.JSONField(null=True, blank=True)

    # Who works on it.
    lock_token = models.CharField(max_length=64, null=True, blank=True)  # noqa: DJ001 - SHA-256 of the token; NULL is "nobody"
    locked_by = models.CharField(max_length=128, null=True, blank=True)  # noqa: DJ001 - stands and falls with lock_token
    locked_at = models.DateTimeField(null=True, blank=True)
    lock_until = models.DateTimeField(null=True, blank=True)
    offered_to = models.CharField(max_length=128, null=True, blank=True)  # noqa: DJ001 - stands and falls with offer_until
    offer_until = models.DateTimeField(null=True, blank=True)

    # A wish to end it.
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_by = models.CharField(max_length=150, blank=True, default="")
    cancel_reason = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        db_table = "ai_runtime_job"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = [
            ("rerun_job", "Can rerun jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("release_lease", "Can take a job from its worker"),
            ("export_jobs", "Can export lists of jobs"),
            ("view_sensitive", "Can see inputs and outputs in clear"),
        ]
        constraints = [
            # Makes two jobs from one request impossible, however many clients post it. (unique=True would add a LIKE index.)
            models.UniqueConstraint(fields=["idempotency_key"], name="job_idempotency_key", condition=Q(idempotency_key__isnull=False)),
            # Makes two reruns of one job at the same time impossible.
            models.UniqueConstraint(fields=["retried_from_job"], name="job_one_unfinished_rerun", condition=~_TERMINAL),
            # Makes a state outside the table impossible; the trigger below guards the steps between them.
            models.CheckConstraint(condition=Q(status__in=[str(status) for status in JobStatus]), name="job_status_known"),
            # Makes a job that no worker looks for impossible.
            models.CheckConstraint(condition=Q(lane__in=[str(lane) for lane in Lane]), name="job_lane_known"),
            # Makes a lock without a holder, or a holder without a fence, impossible.
            models.CheckConstraint(
                condition=Q(lock_token=None, locked_by=None, locked_at=None)
                | Q(lock_token__isnull=False, locked_by__isnull=False, locked_at__isnull=False),
                name="job_token_and_holder_together",
            ),
            # Makes a running job that no reaper finds, and a lease on a job that does not run, impossible.
            models.CheckConstraint(
                condition=Q(_LEASED, lock_token__isnull=False, lock_until__isnull=False) | Q(~_LEASED, lock_until=None),
                name="job_lease_while_leased",
            ),
            # Makes a job that ended without a time, or goes on after one, impossible.
            models.CheckConstraint(
                condition=Q(_TERMINAL, finished_at__isnull=False) | Q(~_TERMINAL, finished_at=None),
                name="job_finished_at_when_terminal",
            ),
            # Makes "one more try" beyond the budget impossible, whoever counts.
            models.CheckConstraint(
                condition=Q(retry_count__gte=0, retry_count__lte=F("max_retry_count")), name="job_retries_within_budget"
            ),
            # Makes a count below nothing impossible.
            models.CheckConstraint(condition=Q(attempt_no__gte=0, lapse_count__gte=0, release_count__gte=0), name="job_counters_positive"),
            # Makes a head start without bounds impossible.
            models.CheckConstraint(condition=Q(priority__gte=0, priority__lte=9), name="job_priority_0_to_9"),
            # Makes an attempt that is over before it begins impossible.
            models.CheckConstraint(condition=Q(timeout_seconds__gte=1), name="job_timeout_positive"),
            # Makes a progress that is no percentage impossible.
            models.CheckConstraint(condition=Q(progress=None) | Q(progress__gte=0, progress__lte=100), name="job_progress_percent"),
            # Makes an offer of a job that runs or has ended impossible.
            models.CheckConstraint(
                condition=Q(offered_to=None, offer_until=None) | Q(_WAITING, offered_to__isnull=False, offer_until__isnull=False),
                name="job_offer_while_waiting",
            ),
            # Makes a failure without a reason, and a success with one, impossible.
            models.CheckConstraint(
                condition=Q(~Q(status=JobStatus.FAILED) | ~Q(error_code=""), ~Q(status=JobStatus.SUCCEEDED) | Q(error_code="")),
                name="job_failed_has_error",
            ),
            # Makes a running job that waits for its cancel without anybody having asked impossible.
            models.CheckConstraint(
                condition=~Q(status=JobStatus.CANCEL_REQUESTED) | Q(cancel_requested_at__isnull=False),
                name="job_cancel_was_requested",
            ),
        ]
        indexes = [
            # The claim, one index per kind of waiting: of each model that has room a scan that ends after a few rows, whatever has finished
            # and however much waits for a model that is blocked.
            models.Index(
                fields=["lane", "job_type", "model_provider", "model_name", "sort_at", "id"],
                name="job_model_queued",
                condition=Q(status=JobStatus.QUEUED),
            ),
            # Its other half: retries that are not due stand behind those that are.
            models.Index(
                fields=["lane", "job_type", "model_provider", "model_name", "available_at", "id"],
                name="job_model_retrying",
                condition=Q(status=JobStatus.RETRYING),
            ),
            # create_job: the user's newest waiting job of the lane (services/fairness.py).
            # The user first: led by the lane it would serve the claim as well, badly, where the table has not been analysed yet.
            models.Index(fields=["user", "lane", "-id"], name="job_user_queued", condition=Q(status=JobStatus.QUEUED)),
            # The scan for leases that ran out, and the count of what runs: leased rows only.
            models.Index(fields=["lock_until"], name="job_leases", condition=_LEASED),
            # Live offers count towards limits.
            models.Index(fields=["offer_until"], name="job_offers", condition=Q(offer_until__isnull=False)),
            # Lists, newest first: of a state.
            models.Index(fields=["status", "-id"], name="job_status"),
            # Of a type.
            models.Index(fields=["job_type", "-id"], name="job_type"),
            # A user's own.
            models.Index(fields=["user", "-id"], name="job_user"),
            # Of a lane.
            models.Index(fields=["lane", "-id"], name="job_lane"),
            # Of a provider.
            models.Index(fields=["model_provider", "-id"], name="job_provider"),
            # Of an error: only rows that have one.
            models.Index(fields=["error_code", "-id"], name="job_error", condition=~Q(error_code="")),
            # Whatever was done to a target.
            models.Index(fields=["target_type", "target_id", "-id"], name="job_target"),
            # The family of a rerun.
            models.Index(fields=["retried_from_job"], name="job_reruns", condition=Q(retried_from_job__isnull=False)),
            # prune.
            models.Index(fields=["finished_at", "id"], name="job_finished", condition=Q(finished_at__isnull=False)),
        ]
        triggers = [
            # The state table of states.py. AFTER and only when the status changes: heartbeats do not pay for it.
            pgtrigger.Trigger(
                name="legal_step",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                condition=pgtrigger.Condition("OLD.status IS DISTINCT FROM NEW.status"),
                func=_transition_guard(),
            ),
            pgtrigger.Trigger(
                name="born_queued",
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                condition=pgtrigger.Condition(f"NEW.status <> '{JobStatus.QUEUED}'"),
                func=_refuse("job %: a job is born queued, not %", "NEW.id", "NEW.status"),
            ),
            pgtrigger.Trigger(
                name="ended_is_final",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                condition=pgtrigger.Condition(f"OLD.status IN ({sql_list(TERMINAL)}) AND OLD.status = NEW.status"),
                func=_refuse("job %: it has ended as % and does not change any more", "OLD.id", "OLD.status"),
            ),
            # The number of real executions never goes down: bills and tokens name it.
            pgtrigger.Trigger(
                name="attempts_never_fall",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                condition=pgtrigger.Condition("NEW.attempt_no < OLD.attempt_no"),
                func=_refuse("job %: attempt_no never goes down, not from % to %", "OLD.id", "OLD.attempt_no", "NEW.attempt_no"),
            ),
            delete_only_by_prune(),
            no_truncate(),
        ]

    def __str__(self) -> str:
        return f"{self.job_type} {self.id}"

    @property
    def result(self) -> "AiRuntimeResult | None":
        """The succeeded result, of which there is at most one; rejected ones stay beside it in `results`."""
        from runtime_jobs.models.result import AiRuntimeResult

        return AiRuntimeResult.objects.filter(job=self, status=AiRuntimeResult.Status.SUCCEEDED).first()
