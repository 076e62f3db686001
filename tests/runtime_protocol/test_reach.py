"""What the protocol can change at all. Business data are out of its reach: only a projector, the business's own code, writes them."""

import json

import pytest
import yaml
from django.db import connection

from runtime_jobs.models import AiModelCredential, AiRuntimeJob
from runtime_protocol.files import CONTRACT
from tests.runtime_protocol.conftest import OUTPUT, RAW, due, usage

pytestmark = pytest.mark.django_db

# What tells how jobs are executed. Of a credential: when it was used last.
OF_EXECUTION = {
    "ai_runtime_job", "ai_job_attempt", "ai_runtime_result", "ai_usage_log", "ai_job_event", "ai_event_delivery", "claim_gate",
    "runtime_instance", "runtime_service_token", "ai_model_credential",
}  # fmt: skip
# What a job was asked to do, by whom and for what.
ASKED = (
    "user_id", "job_type", "target_type", "target_id", "snapshot_id", "priority", "idempotency_key", "api_key_mode", "credential_id",
    "model_provider", "model_name", "prompt_version", "input_schema_version", "output_schema_version", "max_retry_count", "timeout_seconds",
    "retried_from_job_id", "request_fingerprint", "lane", "created_at",
)  # fmt: skip


def everything():
    """A digest of each table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = [name for (name,) in cursor.fetchall()]
        found = {}
        for name in tables:
            cursor.execute(f"SELECT md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) FROM \"{name}\" t")
            found[name] = cursor.fetchone()[0]
    return found


def credentials():
    return [{**row, "last_used_at": None} for row in AiModelCredential.objects.values()]


def asked(*jobs):
    return credentials(), list(AiRuntimeJob.objects.filter(pk__in=[job.pk for job in jobs]).order_by("pk").values(*ASKED))


def test_acceptance_8_no_endpoint_changes_business_data(runtime, make_job):
    jobs = [make_job() for _ in range(4)]
    before, wanted = everything(), asked(*jobs)
    first, second, third = (offer["lease"] for offer in runtime.pull(maxJobs=3)["jobs"])
    answers = [
        runtime.poll(), runtime.lock(jobs[3]), runtime.beat(first, progress=10, progressMessage="x", checkpoint={"a": 1}),
        runtime.beat_all(first, second), runtime.snapshot(first), runtime.resolve(first), runtime.log(first, usage()),
        runtime.result(first, json.dumps({**OUTPUT, "facts": [{"text": "x", "paragraph": "p99"}]})), runtime.fail(second),
        runtime.release(third), runtime.get("health"), runtime.get("schema"),
    ]  # fmt: skip
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 200, 200, 200, 422, 200, 200, 200, 200]
    changed = {name for name, digest in everything().items() if digest != before[name]}
    assert changed <= OF_EXECUTION
    assert changed >= {"ai_runtime_job", "ai_runtime_result", "ai_usage_log"}
    assert asked(*jobs) == wanted


def test_acceptance_8_a_result_changes_business_data_only_by_its_projector(runtime, job, monkeypatch):
    from runtime_jobs import registry

    monkeypatch.setattr(type(registry.get(job.job_type)), "project", lambda *_: None)
    before = everything()
    due(job.pk)
    assert runtime.result(runtime.take(), RAW).status == 200
    changed = {name for name, digest in everything().items() if digest != before[name]}
    assert changed <= OF_EXECUTION


def test_acceptance_8_the_contract_has_no_verb_that_edits():
    contract = yaml.safe_load(CONTRACT.read_text())
    assert {method for path in contract["paths"].values() for method in path} == {"get", "post"}
