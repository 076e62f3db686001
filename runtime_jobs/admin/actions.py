"""Rerun and cancel from the job list: first a page that says what will happen and changes nothing, then the services, one job at a time."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse

from runtime_jobs.errors import ServiceError
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import cancel_job, rerun_job

MOST = 1_000  # jobs in one action


@dataclass(frozen=True)
class Verb:
    name: str  # of the admin action
    title: str
    explanation: str
    button: str
    done: str
    # Returns why a job was skipped, or nothing.
    run: Callable[[UUID, Actor, str], str]


def _rerun(job_id: UUID, actor: Actor, reason: str) -> str:
    return "" if rerun_job(job_id, actor=actor, reason=reason).created else "an unfinished rerun exists already"


def _cancel(job_id: UUID, actor: Actor, reason: str) -> str:
    cancel_job(job_id, actor=actor, reason=reason)
    return ""


RERUN = Verb(
    "rerun_selected",
    "Rerun jobs",
    "Each job that has ended is run again as a new job from the same input. The old job and its result stay as they are.",
    "Rerun",
    "rerun",
    _rerun,
)
CANCEL = Verb(
    "cancel_selected",
    "Cancel jobs",
    "A waiting job ends at once. A running one is asked to stop; what its provider call has cost so far stays recorded.",
    "Cancel the jobs",
    "cancelled or asked to stop",
    _cancel,
)


def confirm_or_run(admin: ModelAdmin, request: HttpRequest, queryset: QuerySet[Any], verb: Verb) -> TemplateResponse | None:
    """The confirmation page, or, when it was confirmed, the action; then the list comes back with its filters."""
    job_ids = list(queryset.order_by("id").values_list("pk", flat=True)[: MOST + 1])
    if len(job_ids) > MOST:
        messages.error(request, f"More than {MOST:,} jobs are selected. Nothing was changed; narrow the filter.")
        return None
    if request.POST.get("confirmed") != "yes":
        return _confirmation(admin, request, job_ids, verb)
    _report(request, verb, _run_all(job_ids, verb, Actor.of(request.user), request.POST.get("reason", "").strip()[:500]))
    return None


def _confirmation(admin: ModelAdmin, request: HttpRequest, job_ids: list[UUID], verb: Verb) -> TemplateResponse:
    context = {
        **admin.admin_site.each_context(request),
        "title": verb.title,
        "verb": verb,
        "job_ids": job_ids,
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "opts": admin.opts,
        "media": admin.media,
    }
    return TemplateResponse(request, "admin/runtime_jobs/confirm_action.html", context)


def _run_all(job_ids: list[UUID], verb: Verb, actor: Actor, reason: str) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for job_id in job_ids:
        try:
            outcomes[verb.run(job_id, actor, reason)] += 1
        except ServiceError as error:
            outcomes[error.message] += 1
    return outcomes


def _report(request: HttpRequest, verb: Verb, outcomes: Counter[str]) -> None:
    done = outcomes.pop("", 0)
    if done:
        messages.success(request, f"{done:,} {verb.done}.")
    for why, count in outcomes.most_common(5):
        messages.warning(request, f"{count:,} skipped: {why}")
