from django.conf import settings
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.models.base import UuidModel


class AiModelCredential(UuidModel):
    """A key for a model provider: the platform's (no user) or one user's own. Only its ciphertext is here (services/credentials.py)."""

    name = models.CharField(max_length=100)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="model_credentials")
    provider = models.CharField(max_length=50)
    base_url = models.CharField(max_length=500)
    ciphertext = models.TextField(editable=False)
    # Which key of the ring encrypted it, so that a rotation finds what is left.
    key_id = models.CharField(max_length=20, editable=False)
    # Keyed, so that equal keys are recognised and nothing can be guessed from it.
    fingerprint = models.CharField(max_length=24, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        db_table = "ai_model_credential"
        verbose_name = _("model credential")
        verbose_name_plural = _("model credentials")
        permissions = [("revoke_credential", "Can revoke model credentials")]
        constraints = [
            # Makes two credentials that nobody can tell apart impossible.
            models.UniqueConstraint(fields=["user", "name"], name="credential_name_once_per_user", nulls_distinct=False),
        ]
        indexes = [
            # create_job: the platform's live credential of a provider.
            models.Index(fields=["provider", "user"], name="credential_live", condition=models.Q(revoked_at=None)),
        ]

    def __str__(self) -> str:
        return self.name
