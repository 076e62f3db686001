import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.models.base import UuidModel, delete_only_by_prune, no_truncate
from runtime_jobs.models.job import AiRuntimeJob


class AiJobEvent(UuidModel):
    """Something that happened to a job: the timeline staff see, the audit of who did what, and the outbox that handlers are fed from.

    The actor is kept as text, so that the record survives the person. Append-only.
    """

    job = models.ForeignKey(AiRuntimeJob, models.PROTECT, related_name="events", db_index=False)
    seq = models.PositiveIntegerField()  # within the job, from 1
    name = models.CharField(max_length=60)  # dotted, stable
    attempt_no = models.PositiveIntegerField(null=True, blank=True)
    actor_id = models.CharField(max_length=60, blank=True, default="")
    actor_name = models.CharField(max_length=150, blank=True, default="")
    data = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "ai_job_event"
        verbose_name = _("event")
        verbose_name_plural = _("events")
        constraints = [
            # Makes two events in one place of the order impossible; also the index by which a timeline is read.
            models.UniqueConstraint(fields=["job", "seq"], name="event_seq_once_per_job"),
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update),
            delete_only_by_prune(),
            no_truncate(),
        ]

    def __str__(self) -> str:
        return f"{self.seq}. {self.name}"


class AiEventDelivery(UuidModel):
    """One event on its way to one handler (services/deliveries.py). Written with the event, so none is lost or skipped."""

    event = models.ForeignKey(AiJobEvent, models.PROTECT, related_name="deliveries", db_index=False)
    handler = models.CharField(max_length=200)
    # Copied from the event: the order per job and handler is read from the partial index alone.
    job_id = models.UUIDField(editable=False)
    seq = models.PositiveIntegerField(editable=False)
    tries = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField(db_default=Now())
    delivered_at = models.DateTimeField(null=True, blank=True)
    parked_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True, default="")

    class Meta:
        db_table = "ai_event_delivery"
        verbose_name = _("event delivery")
        verbose_name_plural = _("event deliveries")
        permissions = [("retry_delivery", "Can let a parked delivery be tried again")]
        constraints = [
            # Makes two deliveries of one event to one handler impossible.
            models.UniqueConstraint(fields=["event", "handler"], name="delivery_once_per_handler"),
            # Makes a delivery that has both arrived and been given up impossible.
            models.CheckConstraint(condition=Q(delivered_at=None) | Q(parked_at=None), name="delivery_not_both_ends"),
        ]
        indexes = [
            # What is due; delivered and parked rows are not in it.
            models.Index(fields=["next_try_at"], name="delivery_due", condition=Q(delivered_at=None, parked_at=None)),
            # Whether an earlier event of the job still waits for the same handler.
            models.Index(fields=["job_id", "handler", "seq"], name="delivery_order", condition=Q(delivered_at=None, parked_at=None)),
            # What was given up, for staff.
            models.Index(fields=["parked_at"], name="delivery_parked", condition=Q(parked_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.handler} {self.event_id}"
