"""The provider's key, taken out of what a runtime sends before it is stored: it had the key in its hands, and models repeat."""

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.views.decorators.debug import sensitive_variables

from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.redaction import MASK, Secret, variants
from runtime_jobs.services import credentials


@sensitive_variables()
def secrets_of(job_ids: Collection[UUID]) -> dict[UUID, tuple[Secret, ...]]:
    """The key of each of these jobs."""
    jobs = AiRuntimeJob.objects.select_related("credential").only(
        "id", "credential__ciphertext", "credential__user", "credential__provider", "credential__base_url"
    )
    return {job.pk: credentials.known_secrets(job.credential) for job in jobs.filter(pk__in=job_ids)}


def masked(text: str, secrets: Collection[Secret]) -> str:
    """Without the whole key in any of its forms. Its ends alone, which `redact` masks too, are too short to be told from prose."""
    for secret in secrets:
        for form in variants(secret.reveal()):
            if len(form) >= len(secret.reveal()):
                text = text.replace(form, MASK)
    return text


def masked_json(value: Any, secrets: Collection[Secret]) -> Any:
    if isinstance(value, str):
        return masked(value, secrets)
    if isinstance(value, list):
        return [masked_json(item, secrets) for item in value]
    if isinstance(value, dict):
        return {masked(name, secrets): masked_json(member, secrets) for name, member in value.items()}
    return value
