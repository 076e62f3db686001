"""A login, a key and a few jobs for a first look. Development mode only."""

import os
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from runtime_jobs import registry
from runtime_jobs.models import AiModelCredential
from runtime_jobs.services.credentials import create_credential
from runtime_jobs.services.jobs import create_job

# The simulator obeys such directives: the list shows jobs that end in different ways.
_JOBS = {
    "background": ("synthetic.extract_facts_background", ""),
    "external": ("synthetic.extract_facts_runtime", ""),
    "retried": ("synthetic.extract_facts", "[[simulate: status=503 times=1]]"),
    "rate-limited": ("synthetic.extract_facts_background", "[[simulate: status=429 retry-after=3 times=1]]"),
    "bad-key": ("synthetic.extract_facts", "[[simulate: status=401]]"),
    "bad-reference": ("synthetic.extract_facts", "[[simulate: bad_reference]]"),
}
_TEXT = (
    "Coffee reached Vienna in the seventeenth century. The first coffee house of the city opened in 1685.\n\n"
    "By 1819 the city counted 150 coffee houses, and most of them had billiard tables. {directive}"
)


class Command(BaseCommand):
    help = "Make the staff login admin (password admin), a platform key for the provider of `make run`, and a few jobs; once."

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("Demo data have a password that everybody knows: only in development mode (DEBUG=1).", returncode=2)
        users = get_user_model().objects
        user = users.filter(is_superuser=True).order_by("pk").first() or users.create_superuser("admin", "", "admin")
        provider = settings.DEFAULT_MODEL_PROVIDER
        self._credential(provider, int(os.environ.get("PROVIDER_PORT", "8001")))
        if provider != "simulator":
            return  # a real model does not misbehave on demand
        for name, (job_type, directive) in _JOBS.items():
            create_job(
                user=user,
                job_type=job_type,
                payload=registry.get(job_type).payload_from_text(_TEXT.format(directive=directive)),
                target_type="demo",
                target_id=name,
                idempotency_key=f"demo:{name}",
            )

    def _credential(self, provider: str, port: int) -> None:
        name = f"{'provider simulator' if provider == 'simulator' else provider} on port {port}"
        if not AiModelCredential.objects.filter(user=None, name=name).exists():
            api_key = os.environ.get("PROVIDER_KEY", "sk-simulator-demo-key")
            create_credential(name=name, provider=provider, base_url=f"http://127.0.0.1:{port}/v1", api_key=api_key)
