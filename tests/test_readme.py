"""README's example of a definition is a working one: this very text is installed as an app, fed with a job and executed."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connection
from django.test import override_settings

from runtime_jobs import registry
from runtime_jobs.engine.attempt import execute_job
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.services.calling import make_service
from runtime_jobs.states import JobStatus
from tests.factories import CredentialFactory, UserFactory
from tests.support.provider_simulator import Behaviour, ProviderSimulator

README = Path(__file__).resolve().parent.parent / "README.md"
TEXT = "Where is my lamp? You have sent me the invoice twice."


def blocks():
    """The Python blocks of the section, by the file that their first line names."""
    section = README.read_text().partition("\n## Writing a definition\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```python\n# ([^\n]+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture
def shop(tmp_path, db):
    """README's app, installed; its Ticket model. Everything is as before afterwards, the table by the test's rollback."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("shop/models.py", "shop/ai_jobs.py"):
        (tmp_path / name).write_text(blocks()[name])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        patch.setattr(registry, "_definitions", dict(registry._definitions))
        try:
            with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "shop"]):
                ticket = import_module("shop.models").Ticket
                with connection.schema_editor() as editor:
                    editor.create_model(ticket)
                yield ticket
        finally:
            apps.all_models.pop("shop", None)
            for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
                del sys.modules[name]


@pytest.fixture
def provider():
    with ProviderSimulator() as simulator:
        yield simulator


def run_job(shop, provider, answer):
    """A ticket comes in as README says, and the model answers so."""
    CredentialFactory(base_url=provider.url)
    ticket = shop.objects.create(text=TEXT)
    exec(blocks()["wherever a ticket comes in"], {"user": UserFactory(), "ticket": ticket})  # noqa: S102 - README's text is ours
    content = answer if isinstance(answer, str) else json.dumps(answer)
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60}
    provider.script("", Behaviour.raw(200, {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}))
    job = AiRuntimeJob.objects.get(job_type="shop.sort_ticket")
    execute_job(job.pk, worker="test", service=make_service())
    job.refresh_from_db()
    ticket.refresh_from_db()
    return job, ticket


def test_the_example_of_a_definition_is_short_complete_and_works(shop, provider):
    job, ticket = run_job(shop, provider, {"category": "invoice", "quote": "the invoice twice", "confidence": 0.9})
    assert job.status == JobStatus.SUCCEEDED
    assert (ticket.category, ticket.because) == ("invoice", "the invoice twice")
    (request,) = provider.requests
    assert "['delivery', 'invoice', 'other']" in request.prompt
    assert TEXT in request.prompt
    assert sum(len(text.splitlines()) for name, text in blocks().items() if name.startswith("shop/")) < 60


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"category": "lamps", "quote": "Where is my lamp?", "confidence": 0.9}, "reference_validation_failed"),
        ({"category": "delivery", "quote": "Where is my sofa?", "confidence": 0.9}, "reference_validation_failed"),
        ({"category": "delivery", "quote": "Where is my lamp?", "confidence": 0.2}, "business_validation_failed"),
        ({"category": "delivery", "quote": "Where is my lamp?"}, "schema_validation_failed"),
        ("I would say delivery.", "schema_validation_failed"),
    ],
)
def test_the_example_refuses_what_it_should_and_leaves_the_ticket_alone(shop, provider, answer, code):
    job, ticket = run_job(shop, provider, answer)
    assert (job.status, job.error_code) == (JobStatus.FAILED, code)
    assert (ticket.category, ticket.because) == ("", "")


@pytest.fixture
def everything_before():
    """Set up before the shop, so that it looks again when the shop is gone."""
    before = (registry.job_types(), list(apps.all_models), list(apps.app_configs))
    yield
    assert (registry.job_types(), list(apps.all_models), list(apps.app_configs)) == before
    assert "shop.ai_jobs" not in sys.modules


def test_nothing_is_left_of_the_example(everything_before, shop):
    assert "shop.sort_ticket" in registry.job_types()
