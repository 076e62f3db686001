"""A process with the settings of one system, which creates its jobs: `python -m tests.benchmarks.load SYSTEM ACTION OPTIONS-AS-JSON`.

Actions: `tables`, `prefill` (jobs that wait), `arrivals` (jobs that come one by one), `capture` and `capture_protocol` (ours:
statements for pgbench and for the plain view), `token` (ours). The last line of the output is JSON.
"""

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import django
from django.core.management import call_command
from django.db import connection, transaction

SENDERS = 4  # threads that create jobs, so that a slow insert does not hold up the next arrival


class Ours:
    def __init__(self) -> None:
        from django.contrib.auth import get_user_model

        users = get_user_model().objects
        self.user = users.filter(username="bench").first() or users.create_user("bench")

    def tables(self) -> None:
        from runtime_jobs.services.credentials import create_credential

        create_credential(name="instant", provider="instant", base_url="http://127.0.0.1:9/v1", api_key="sk-bench-0123456789")

    def create(self, key: str) -> None:
        from runtime_jobs.services.jobs import create_job

        create_job(user=self.user, job_type="bench.stamp", payload={"key": key}, target_type="bench", target_id=key)

    def prefill(self, kind: str, jobs: int, base_url: str = "", seconds: float = 0) -> None:
        """One job through create_job, the others as copies of its rows, a step apart: 20,000 through the service would take minutes."""
        from runtime_jobs.models import AiJobEvent, AiRuntimeJob
        from runtime_jobs.models.base import new_id
        from runtime_jobs.services.credentials import create_credential
        from runtime_jobs.services.jobs import create_job

        if base_url:
            create_credential(name="simulator", provider="simulator", base_url=base_url, api_key="sk-bench-0123456789")
        first = create_job(
            user=self.user, job_type=f"bench.{kind}", payload={"seconds": seconds}, target_type="bench", target_id=kind, timeout_seconds=300
        )
        copies = [new_id() for _ in range(jobs - 1)]
        step = "sort_at + n * interval '1 second'"
        self._copy(AiRuntimeJob, "id", first.pk, copies, {"id": "made", "sort_at": step})
        self._copy(AiJobEvent, "job_id", first.pk, copies, {"id": "gen_random_uuid()", "job_id": "made"})

    def token(self, name: str) -> str:
        from runtime_jobs.services import service_tokens

        return service_tokens.issue(name=name, days=1)[1].reveal()

    @staticmethod
    def _copy(model: Any, key: str, pk: Any, copies: list[Any], changed: dict[str, str]) -> None:
        columns = [column.column for column in model._meta.concrete_fields]
        values = [changed.get(column, f'"{column}"') for column in columns]
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {model._meta.db_table} ({', '.join(columns)}) SELECT {', '.join(values)} "
                f"FROM {model._meta.db_table}, unnest(%s::uuid[]) WITH ORDINALITY AS copies(made, n) WHERE {key} = %s",
                [copies, pk],
            )


class Procrastinate:
    def __init__(self) -> None:
        from tests.benchmarks import procrastinate_app

        self.tasks = procrastinate_app
        self.app = procrastinate_app.app
        self.app.open()

    def tables(self) -> None:
        self.app.schema_manager.apply_schema()

    def create(self, key: str) -> None:
        self.tasks.stamp.defer(key=key)

    def prefill(self, kind: str, jobs: int) -> None:
        task = getattr(self.tasks, kind)
        for start in range(0, jobs, 1_000):
            numbers = range(start, min(start + 1_000, jobs))
            task.batch_defer(*({"key": str(number)} if kind == "rows" else {} for number in numbers))


class DjangoQ:
    def tables(self) -> None:
        pass

    def create(self, key: str) -> None:
        from django_q.tasks import async_task

        async_task("tests.benchmarks.django_q_tasks.stamp", key)

    def prefill(self, kind: str, jobs: int) -> None:
        from django_q.tasks import async_task

        with transaction.atomic():
            for _ in range(jobs):
                async_task(f"tests.benchmarks.django_q_tasks.{kind}")


def arrivals(create: Callable[[str], None], *, rate: float, jobs: int, seed: int, prefix: str) -> dict[str, Any]:
    """Create jobs at times that are drawn beforehand (a Poisson process), however long anything takes: an open loop.

    When each commit had returned, as seconds since the epoch: before our own wake-up call, by the clock that the database on this machine
    reads as well. Asking the database would hold up that call.
    """
    draw = random.Random(seed)
    times: list[float] = []
    at = 0.0
    for _ in range(jobs):
        at += draw.expovariate(rate)
        times.append(at)
    committed: dict[str, float] = {}
    position = iter(range(jobs))
    lock = threading.Lock()
    begin = time.monotonic() + 0.5

    def note(key: str) -> None:
        committed[key] = time.time()

    def send() -> None:
        while True:
            with lock:
                number = next(position, None)
            if number is None:
                connection.close()
                return
            time.sleep(max(0.0, begin + times[number] - time.monotonic()))
            key = f"{prefix}{number}"
            with transaction.atomic():
                # The first to be run after the commit.
                transaction.on_commit(partial(note, key))
                create(key)

    threads = [threading.Thread(target=send) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"committed": committed, "seconds": time.monotonic() - begin, "planned": times[-1]}


SYSTEMS: dict[str, Any] = {"ours": Ours, "procrastinate": Procrastinate, "django_q": DjangoQ}


def main() -> None:
    system, action, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    django.setup()
    if action == "tables":
        call_command("migrate", "--run-syncdb", verbosity=0)
    sender = SYSTEMS[system]()
    said: Any = None
    if action == "arrivals":
        said = arrivals(sender.create, **options)
    elif action == "capture":
        from tests.benchmarks.capture import capture

        said = capture(**options)
    elif action == "capture_protocol":
        from tests.benchmarks.capture_protocol import capture_protocol

        said = capture_protocol(**options)
    else:
        said = getattr(sender, action)(**options)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
