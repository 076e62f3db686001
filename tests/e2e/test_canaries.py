"""A key and a sentence that nobody may find: after every way in which a call can fail, and with logs at their most talkative."""

import json
import re
from typing import Any

import pytest
from django.db import connection

from runtime_jobs.services.jobs import create_job
from runtime_jobs.synthetic.ai_jobs import split_paragraphs
from tests.e2e.conftest import System
from tests.e2e.test_engine_acceptance import answer
from tests.factories import CredentialFactory, UserFactory
from tests.support.processes import engine
from tests.support.provider_simulator import Behaviour

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "sk-canary-7f3a9c51e8d24b60a1f7c3e95d80b246"
SENTENCE = "The canary sings of Mrs Eleonora Waldheim of 14 Quince Street"

# Where the sentence may stand: the input, what the model answered, and what the business made of it.
MAY_HOLD_THE_SENTENCE = {"ai_job_snapshot", "ai_runtime_result", "synthetic_extracted_text", "synthetic_extracted_fact"}

ECHO = {"error": {"message": f"Wrong input: {SENTENCE}. Your key {KEY} is fine.", "type": "invalid_request_error", "code": "odd"}}
FACTS = json.dumps({"summary": SENTENCE, "facts": [{"text": SENTENCE, "paragraph": "p1"}]})

BEHAVIOURS = {
    "success": answer(FACTS),
    "echo in a 400": Behaviour.raw(400, ECHO),
    "echo in a 401": Behaviour.raw(401, ECHO),
    "echo in a 429": Behaviour.raw(429, ECHO),
    "echo in a 500": Behaviour.raw(500, ECHO),
    "echo in a 200": Behaviour.raw(200, ECHO),
    "echo as text": Behaviour.raw(502, f"<html>{SENTENCE} {KEY}</html>", content_type="text/html"),
    "unreadable JSON": answer(f'{{"summary": "{SENTENCE}'),
    "wrong schema": answer(json.dumps({"summary": SENTENCE, "facts": SENTENCE, SENTENCE: 1})),
    "bad reference": answer(json.dumps({"summary": SENTENCE, "facts": [{"text": SENTENCE, "paragraph": "p9"}]})),
    "key in the output": answer(json.dumps({"summary": f"the key is {KEY}", "facts": []})),
    **{
        mode: Behaviour.parse(mode)
        for mode in (
            "reset",
            "short",
            "hang",
            "redirect",
            "refusal",
            "content_filter",
            "truncated",
            "gzip_bomb size=5000000",
            "sse",
            "null",
        )
    },
}


def rows_with(needle: str) -> set[str]:
    """The tables of which a row, written as text, holds the needle."""
    found = set()
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            # Escaped text in JSON columns is looked through as well.
            cursor.execute(f'SELECT count(*) FROM "{table}" t WHERE position(%s IN t::text) > 0', [needle])
            if cursor.fetchone()[0]:
                found.add(table)
    return found


def test_the_key_and_the_input_are_in_no_log_and_in_no_table_but_where_they_belong(transactional_db, provider):
    """provider_calls 25, 27"""
    user: Any = UserFactory()
    CredentialFactory(base_url=provider.url, api_key=KEY)
    with engine(LOG_LEVEL="DEBUG") as running:
        system = System(user, provider, running)
        jobs = {}
        for name, behaviour in BEHAVIOURS.items():
            text = f"{SENTENCE} ({name})."
            provider.script(f"({name})", behaviour, behaviour)
            jobs[name] = create_job(
                user=user, job_type="synthetic.extract_facts", payload={"paragraphs": split_paragraphs(text)},
                target_type="canary", target_id=name, max_retry_count=1, timeout_seconds=2,
            )  # fmt: skip
        for where in ("execute", "validate", "project"):
            provider.script(f"fault in {where}", *[answer('{"ok": true}')] * 3)
            jobs[where] = system.create(f"{SENTENCE} fault in {where}", script={"raise": where})
        ended = {name: system.ended(job, 60) for name, job in jobs.items()}
        log = running.log()
    assert ended["success"].status == "succeeded"
    assert {ended[name].status for name in jobs if name != "success"} == {"failed"}
    # The needles would be found: what must hold them does.
    assert "ai_job_snapshot" in rows_with(SENTENCE)
    assert len(log) > 5_000
    assert rows_with(SENTENCE) <= MAY_HOLD_THE_SENTENCE
    assert rows_with(KEY) <= {"ai_runtime_result"}  # a model that says the key: its raw output is evidence
    for needle in (SENTENCE, "Waldheim", KEY, KEY[-8:]):
        assert needle not in log, [line for line in log.splitlines() if needle in line][:3]
    for job in ended.values():
        assert not re.search("Waldheim|canary-7f3a", f"{job.internal_error} {job.error_message}")
