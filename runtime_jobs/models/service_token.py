from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.models.base import UuidModel


class RuntimeServiceToken(UuidModel):
    """What lets a runtime speak the internal protocol. Of its secret only the SHA-256 is stored."""

    name = models.CharField(max_length=100)
    key_id = models.CharField(max_length=20, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    scopes = models.JSONField(default=list)
    job_types = models.JSONField(default=list, blank=True)  # empty = all
    instance_pattern = models.CharField(max_length=200, default=".*")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        db_table = "runtime_service_token"
        verbose_name = _("service token")
        verbose_name_plural = _("service tokens")
        permissions = [("revoke_service_token", "Can revoke service tokens")]
        constraints = [
            # Makes two tokens that answer to one key id impossible.
            models.UniqueConstraint(fields=["key_id"], name="service_token_key_id"),
        ]

    def __str__(self) -> str:
        return self.name
