from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.models.base import UuidModel, choices
from runtime_jobs.states import Lane


class RuntimeInstance(UuidModel):
    """A worker, of the engine or a runtime: when it was last seen, what it can run, whether it is to drain."""

    class Kind(models.TextChoices):
        ENGINE = "engine", _("Engine")
        RUNTIME = "runtime", _("Runtime")
        WEB = "web", _("Web")  # serves the protocol; while none is up, no lease of a runtime lapses

    name = models.CharField(max_length=128)
    kind = models.CharField(max_length=20, choices=Kind)
    lane = models.CharField(max_length=20, choices=choices(Lane))
    version = models.CharField(max_length=100, blank=True, default="")
    job_types = models.JSONField(default=list, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    draining = models.BooleanField(default=False)
    started_at = models.DateTimeField(db_default=Now())  # since when it has been seen without a gap
    last_seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "runtime_instance"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        permissions = [("drain_worker", "Can let a worker drain")]
        constraints = [
            # Makes two rows for one worker impossible.
            models.UniqueConstraint(fields=["name"], name="instance_name"),
        ]
        indexes = [
            # Who is alive in a lane; what is long gone.
            models.Index(fields=["lane", "-last_seen_at"], name="instance_alive"),
        ]

    def __str__(self) -> str:
        return self.name
