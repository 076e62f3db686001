"""Create a job from a file, and watch it."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from runtime_jobs import queries, registry
from runtime_jobs.errors import ServiceError
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.services.jobs import create_job
from runtime_jobs.states import TERMINAL, JobStatus

_POLL_SECONDS = 0.1


class Command(BaseCommand):
    help = (
        "Create a job of the given type from a UTF-8 text file (- reads standard input). Exit status 0: created, or succeeded with --wait."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job_type", help="for example synthetic.extract_facts")
        parser.add_argument("--file", required=True, help="the input; - is standard input")
        parser.add_argument("--user", help="whose job it is; default: the first superuser")
        parser.add_argument("--target", default="", metavar="TYPE:ID", help="what it is about; default file:NAME")
        parser.add_argument("--key", help="idempotency key: the same key and input give the same job")
        parser.add_argument("--priority", type=int, default=5, help="0 to 9, higher is sooner; default 5")
        parser.add_argument(
            "--wait", action="store_true", help="show its states as they pass, then the result; exit 0 only if it succeeded"
        )
        parser.add_argument("--timeout", type=float, default=600, help="seconds to wait at most; default 600")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            definition = registry.get(options["job_type"])
            target_type, target_id = _target(options["target"], options["file"])
            job = create_job(
                user=_user(options["user"]),
                job_type=options["job_type"],
                payload=definition.payload_from_text(_read(options["file"])),
                target_type=target_type,
                target_id=target_id,
                idempotency_key=options["key"],
                priority=options["priority"],
            )
        except ServiceError as error:
            raise CommandError(error.message, returncode=2) from None
        self.stdout.write(f"job {job.pk} {job.job_type} ({job.lane})")
        if options["wait"]:
            self._wait(job, options["timeout"])

    def _wait(self, job: AiRuntimeJob, timeout: float) -> None:
        started, shown, deadline = time.monotonic(), 0, time.monotonic() + timeout
        while True:
            # The status first: what is read of the timeline afterwards is then complete.
            status = AiRuntimeJob.objects.values_list("status", flat=True).get(pk=job.pk)
            for event in queries.events_after(job.pk, shown):
                shown = event.seq
                detail = " ".join(f"{name}={value}" for name, value in event.data.items() if name != "status")
                self.stdout.write(f"{time.monotonic() - started:6.1f}s  {event.data.get('status', ''):<16} {event.name} {detail}".rstrip())
                self.stdout.flush()
            if status in TERMINAL:
                break
            if time.monotonic() > deadline:
                raise CommandError(
                    f"Not done after {timeout:g} s: the job is {status}. It goes on; is an engine running for its lane? "
                    f"(Q_CLUSTER_NAME={job.lane} python manage.py run_engine)"
                )
            time.sleep(_POLL_SECONDS)
        job.refresh_from_db()
        if status != JobStatus.SUCCEEDED:
            raise CommandError(f"The job is {status}: {job.error_code}: {job.error_message}")
        self.stdout.write(json.dumps(queries.succeeded_output(job.pk), indent=2, ensure_ascii=False))


def _read(name: str) -> str:
    most = settings.JOB_MAX_SNAPSHOT_BYTES
    try:
        if name == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(most + 1)
    except OSError as error:
        raise CommandError(f"Cannot read {name}: {error.strerror}.", returncode=2) from None
    if len(data) > most:
        raise CommandError(f"The text is larger than {most:,} bytes (JOB_MAX_SNAPSHOT_BYTES).", returncode=2)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(f"{name} is not UTF-8 text (byte {error.start:,} is not). Convert it first.", returncode=2) from None


def _user(name: str | None) -> Any:
    users = get_user_model().objects
    if name is None:
        user = users.filter(is_superuser=True, is_active=True).order_by("pk").first()
        if user is None:
            raise CommandError("There is no superuser; name a user with --user.", returncode=2)
        return user
    user = users.filter(**{get_user_model().USERNAME_FIELD: name}).first()
    if user is None:
        raise CommandError(f"There is no user {name!r}.", returncode=2)
    return user


def _target(target: str, file: str) -> tuple[str, str]:
    if target:
        kind, colon, identifier = target.partition(":")
        if not (kind and colon and identifier):
            raise CommandError(f"--target must be TYPE:ID, not {target!r}.", returncode=2)
        return kind, identifier
    return "file", "stdin" if file == "-" else Path(file).name[-200:]
