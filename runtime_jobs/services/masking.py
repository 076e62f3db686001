"""The provider's key, taken out of what a runtime sends before it is stored: it had the key in its hands, and models repeat."""

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.views.decorators.debug import sensitive_variables

from runtime_jobs import prepared
from runtime_jobs.models import AiModelCredential
from runtime_jobs.redaction import MASK, Secret, variants
from runtime_jobs.services import credentials

_CREDENTIALS = """
    SELECT j.id, c.id, c.user_id, c.provider, c.base_url, c.ciphertext
    FROM ai_runtime_job j JOIN ai_model_credential c ON c.id = j.credential_id WHERE j.id = ANY(%(ids)s::uuid[])
"""


@sensitive_variables()
def secrets_of(job_ids: Collection[UUID]) -> dict[UUID, tuple[Secret, ...]]:
    """The key of each of these jobs."""
    found, opened = {}, dict[UUID, tuple[Secret, ...]]()
    for job_id, credential_id, user_id, provider, base_url, ciphertext in prepared.run(_CREDENTIALS, {"ids": list(job_ids)}):
        if credential_id not in opened:
            sealed = AiModelCredential(id=credential_id, user_id=user_id, provider=provider, base_url=base_url, ciphertext=ciphertext)
            opened[credential_id] = credentials.known_secrets(sealed)
        found[job_id] = opened[credential_id]
    return found


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
