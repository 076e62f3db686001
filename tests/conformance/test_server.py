"""The conformance suite over this server, as a process of its own."""

from uuid import UUID

import pytest

from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.services.events import SYSTEM
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.states import TERMINAL
from tests.conformance import of_server
from tests.conformance.__main__ import main
from tests.conformance.calls import JOB_TYPE
from tests.conformance.scenarios import table
from tests.conformance.server import Server
from tests.factories import CredentialFactory, JobFactory, UserFactory
from tests.runtime_protocol.conftest import issue
from tests.runtime_protocol.web import web_server
from tests.support.processes import database_url

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def web(transactional_db):
    with web_server(workers=2, threads=32, RUNTIME_MIN_LEASE_SECONDS=1, RUNTIME_LEASE_SECONDS=2, RETRY_BASE_SECONDS=0.1) as running:
        yield running


def test_this_server_conforms(web):
    credential, user = CredentialFactory(), UserFactory()
    server = Server(
        f"http://127.0.0.1:{web.port}",
        issue(),
        create_job=lambda: JobFactory(user=user, credential=credential, job_type=JOB_TYPE),
        cancel_job=lambda job_id: cancel_job(UUID(job_id), actor=SYSTEM, reason="conformance"),
    )
    outcomes = of_server.suite.run(server.context)
    print(table(outcomes))
    assert {one.verdict for one in outcomes} == {"pass"}
    # Nothing of it is left for whoever works on the server next.
    assert not AiRuntimeJob.objects.exclude(status__in=TERMINAL).exists()


def test_its_own_commands_make_and_cancel_jobs(web, monkeypatch, capsys):
    CredentialFactory()
    UserFactory(username="admin", is_superuser=True)
    monkeypatch.setenv("DATABASE_URL", database_url())
    status = main(["--base-url", f"http://127.0.0.1:{web.port}", "--token", issue(), "--only", "life", "--only", "S43"])
    printed = capsys.readouterr().out
    assert (status, "2 passed, 0 failed, 0 skipped" in printed) == (0, True), printed


def test_a_server_that_does_not_answer_does_not_pass(capsys):
    assert main(["--base-url", "http://127.0.0.1:9", "--token", "rt_a_b", "--only", "health"]) == 1
    assert "health FAIL" in capsys.readouterr().out
