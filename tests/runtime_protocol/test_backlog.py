"""A hundred thousand waiting jobs behind the protocol: neither what a poll reads and locks nor any endpoint's work grows with them."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from runtime_jobs.models import AiRuntimeJob, RuntimeServiceToken
from runtime_jobs.models.base import new_id
from runtime_jobs.services import pulls
from tests.conftest import triggers_off
from tests.factories import CredentialFactory, JobFactory, UserFactory
from tests.runtime_protocol.conftest import JOB_TYPE, OUTPUT, Runtime, issue, usage
from tests.runtime_protocol.web import through_http, web_server
from tests.support.processes import database_url, wait_for

BACKLOG = 100_000


def load(count):
    """Copies of the job there is, each a millisecond later in its lane than the one before."""
    own = {
        "id": "(lpad(to_hex(1767225600000 + n), 12, '0') || '7000a000' || lpad(to_hex(n), 12, '0'))::uuid",
        "sort_at": "t.sort_at + n * interval '1 ms'",
        "target_id": "n::text",
        "idempotency_key": "NULL",
    }
    names = [field.attname for field in AiRuntimeJob._meta.concrete_fields]
    with triggers_off(), connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO ai_runtime_job ({', '.join(names)}) SELECT {', '.join(own.get(name, 't.' + name) for name in names)} "
            f"FROM ai_runtime_job t, generate_series(1, {count}) n"
        )


@pytest.fixture
def backlog(transactional_db):
    JobFactory(user=UserFactory(), job_type=JOB_TYPE, credential=CredentialFactory())
    load(BACKLOG - 1)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE ai_runtime_job")


def read_so_far():
    """Rows of the job table that were read: by walking it, and by its indexes."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'ai_runtime_job'")
        return cursor.fetchone()


@pytest.mark.django_db(transaction=True)
def test_s24_twenty_pollers_before_a_hundred_thousand_jobs_read_a_few_rows_each(backlog):
    token = issue()
    with web_server(workers=1, threads=32) as web:

        def take_ten(number):
            runtime = Runtime(through_http(web.port), token, f"runtime-{number}")
            return [runtime.take()["jobId"] for _ in range(10)]

        before = read_so_far()
        with ThreadPoolExecutor(20) as pool:
            taken = list(itertools.chain.from_iterable(pool.map(take_ten, range(20))))
    wait_for(lambda: read_so_far()[1] - before[1] >= len(taken), 10, "the server's connections have ended and told what they read")
    walked, fetched = (now - then for now, then in zip(read_so_far(), before, strict=True))
    assert len(set(taken)) == len(taken) == 200
    assert walked == 0
    assert fetched <= 200 * 100, fetched / 200
    first = AiRuntimeJob.objects.order_by("sort_at").values_list("pk", flat=True)[:200]
    assert {str(pk) for pk in first} == set(taken)


@pytest.mark.django_db(transaction=True)
def test_s24_a_claim_locks_no_more_rows_than_it_takes(backlog):
    issue()
    token = RuntimeServiceToken.objects.get()
    with psycopg.connect(database_url()) as other, transaction.atomic():
        taken = pulls.pull(
            service_token_id=token.pk, worker="runtime-1", request_id=new_id(), job_types=[JOB_TYPE], count=3, lease_seconds=60
        )
        assert len(taken) == 3
        unlocked = "SELECT count(*) FROM (SELECT 1 FROM ai_runtime_job WHERE status = 'queued' FOR NO KEY UPDATE SKIP LOCKED) t"
        assert other.execute(unlocked).fetchone() == (BACKLOG - 3,)
        other.rollback()


@pytest.mark.django_db
def test_no_endpoints_query_count_grows_with_data(runtime, make_job):
    def life():
        """How many queries each call of one job's life takes."""
        counts = {}

        def counted(name, call):
            with CaptureQueriesContext(connection) as caught:
                answer = call()
            assert answer.status == 200, answer.body
            counts[name] = len(caught)
            return answer

        lease = counted("poll with autoLock", runtime.pull)["jobs"][0]["lease"]
        counted("heartbeat", lambda: runtime.beat(lease, progress=1, checkpoint={"page": 1}))
        counted("snapshot", lambda: runtime.snapshot(lease))
        counted("resolve", lambda: runtime.resolve(lease))
        counted("logs", lambda: runtime.log(lease, usage()))
        counted("result", lambda: runtime.result(lease, validatedOutput=OUTPUT))
        counted("result again", lambda: runtime.result(lease, validatedOutput=OUTPUT))
        offered = counted("poll", runtime.poll)["jobs"][0]["jobId"]
        lease = counted("lock", lambda: runtime.lock(offered)).body
        counted("fail", lambda: runtime.fail(lease))
        lease = runtime.take()
        counted("release", lambda: runtime.release(lease))
        counted("health", lambda: runtime.get("health"))
        return counts

    for _ in range(3):
        make_job()
    runtime.get("health")  # the token's last use is noted
    few = life()
    for _ in range(300):
        make_job()
    many = life()
    assert many == few
    assert max(many.values()) <= 20, many


@pytest.mark.django_db
def test_no_endpoints_query_count_grows_with_what_one_call_carries(runtime, make_job):
    def queries(call):
        with CaptureQueriesContext(connection) as caught:
            assert call().status == 200
        return len(caught)

    for _ in range(40):
        make_job()
    runtime.get("health")
    leases: list[dict[str, Any]] = []

    def pull(count):
        answer = runtime.pull(maxJobs=count)
        leases.extend(offer["lease"] for offer in answer["jobs"])
        return answer

    assert queries(lambda: pull(1)) == queries(lambda: pull(32))
    assert queries(lambda: runtime.beat_all(leases[0])) == queries(lambda: runtime.beat_all(*leases))
    calls = [usage(f"call-{number}") for number in range(101)]
    assert queries(lambda: runtime.log(leases[0], calls[0])) == queries(lambda: runtime.log(leases[0], *calls[1:]))
