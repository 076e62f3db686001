"""What stands on the page of one job."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from runtime_jobs import queries, registry
from runtime_jobs.admin import json_tree, vocabulary, words
from runtime_jobs.models import AiRuntimeJob, ClaimGate
from runtime_jobs.queries import job_pages
from runtime_jobs.services.workers import ALIVE_SECONDS
from runtime_jobs.states import LEASED, TERMINAL, WAITING, JobStatus

SENSITIVE = "runtime_jobs.view_sensitive"
_ALIVE = timedelta(seconds=ALIVE_SECONDS)


def context(job: AiRuntimeJob, chosen: Mapping[str, str], *, clear: bool) -> dict[str, Any]:
    """`chosen` has the page of each table, such as calls=2; the newest rows are on page 1."""
    result = queries.succeeded_result(job.pk) if job.status == JobStatus.SUCCEEDED else None
    gates = job_pages.gates(job) if job.status in WAITING else []
    workers = job_pages.live_workers(job, _ALIVE) if job.status in WAITING else 0
    return {
        "job": job,
        "status": vocabulary.status(job.status),
        "public_error": vocabulary.public_error(job.error_code) if job.error_code else "",
        "next_steps": _next_steps(job, gates, workers),
        "facts": _facts(job),
        "holder": job_pages.worker_named(job.locked_by) if job.status in LEASED else None,
        "executions": _pages("attempts", job_pages.executions(job, _page(chosen, "attempts")), _execution),
        "calls": _pages("calls", job_pages.calls(job, _page(chosen, "calls")), _call),
        "totals": job_pages.totals(job),
        "results": _pages("results", job_pages.results(job, _page(chosen, "results"))),
        "events": _pages("events", job_pages.events(job, _page(chosen, "events")), _event),
        "staff_actions": [_event(event) for event in job_pages.staff_actions(job)],
        "family": _family(job),
        "input": _document(job, job.snapshot.payload, clear=clear),
        "input_bytes": job.snapshot.size_bytes,
        "output": _document(job, result.validated_output, clear=clear) if result else None,
        "result": result,
    }


def document(job: AiRuntimeJob, what: str) -> str | None:
    """The whole input or validated output as JSON, for who may see sensitive text; None when there is none."""
    if what == "input":
        value: Any = job.snapshot.payload
    else:
        result = queries.succeeded_result(job.pk)
        if result is None:
            return None
        value = result.validated_output
    return json.dumps(registry.visible(job.job_type, value, clear=True), indent=2, ensure_ascii=False)


def _document(job: AiRuntimeJob, value: Any, *, clear: bool) -> json_tree.Tree:
    return json_tree.tree(registry.visible(job.job_type, value, clear=clear))


def _page(chosen: Mapping[str, str], table: str) -> int:
    text = chosen.get(table, "1")
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def _pages(name: str, window: job_pages.Window[Any], show: Any = lambda row: row) -> dict[str, Any]:
    return {
        "name": name,
        "rows": [show(row) for row in window.rows],
        "newer": window.page - 1,
        "older": window.page + 1 if window.has_older else 0,
    }


def _execution(row: job_pages.Execution) -> dict[str, Any]:
    def said(span: job_pages.Span | None) -> str | SafeString:
        return words.between(span.start, span.end) if span else words.NOTHING

    return {
        "attempt": row.attempt,
        "outcome": vocabulary.outcome(row.attempt.outcome) if row.attempt.outcome else vocabulary.status(JobStatus.RUNNING),
        "outcome_class": row.attempt.outcome or "running",
        "public_error": vocabulary.public_error(row.attempt.error_code) if row.attempt.error_code else "",
        "backoff": said(row.backoff),
        "wait": said(row.wait),
        "run": said(row.run),
        "started": words.when(row.attempt.started_at),
        "ended": words.when(row.attempt.ended_at),
    }


def _call(call: Any) -> dict[str, Any]:
    return {
        "call": call,
        "outcome": vocabulary.outcome(call.outcome),
        "took": words.duration(timedelta(milliseconds=call.latency_ms)) if call.latency_ms is not None else words.NOTHING,
        "started": words.when(call.created_at),
    }


def _event(event: Any) -> dict[str, Any]:
    data = {name: value for name, value in event.data.items() if name not in ("reason", "request_id")}
    return {
        "event": event,
        "when": words.when(event.created_at),
        "reason": event.data.get("reason", ""),
        "request_id": event.data.get("request_id", ""),
        "data": json.dumps(data, ensure_ascii=False) if data else "",
    }


def _family(job: AiRuntimeJob) -> list[dict[str, Any]]:
    relatives = job_pages.family(job.pk)
    return (
        [
            {
                "relative": relative,
                "status": vocabulary.status(relative.status),
                "is_this": relative.id == job.pk,
                "url": job_url(relative.id),
                "parent_url": job_url(relative.parent) if relative.parent else "",
                "created": words.when(relative.created_at),
            }
            for relative in relatives
        ]
        if len(relatives) > 1
        else []
    )


def job_url(job_id: Any) -> str:
    """A job's address, for good."""
    return reverse("admin:runtime_jobs_airuntimejob_change", args=[job_id])


def _facts(job: AiRuntimeJob) -> list[tuple[str, Any]]:
    whose = _("the platform's") if job.api_key_mode == "platform" else _("the user's own")
    target = format_html("{} <code>{}</code>", job.target_type, job.target_id)
    return [
        (_("user"), job.user),
        (_("target"), target),
        (_("lane"), vocabulary.lane(job.lane)),
        (_("priority"), job.priority),
        (_("idempotency key"), job.idempotency_key or words.NOTHING),
        (_("provider and model"), f"{job.model_provider} / {job.model_name}"),
        (_("key"), f"{job.credential} ({whose})"),
        (_("prompt, input and output versions"), f"{job.prompt_version}, {job.input_schema_version}, {job.output_schema_version}"),
        (_("time limit of an attempt"), words.duration(timedelta(seconds=job.timeout_seconds))),
        (_("retries after errors"), _("%(used)d of %(most)d") % {"used": job.retry_count, "most": job.max_retry_count}),
        (_("lapsed and released leases"), f"{job.lapse_count}, {job.release_count}"),
        (_("created"), words.when(job.created_at)),
        (_("first started"), words.when(job.started_at)),
        (_("finished"), words.when(job.finished_at)),
        (_("trace"), job.traceparent or words.NOTHING),
    ]


def _next_steps(job: AiRuntimeJob, gates: list[ClaimGate], workers: int) -> list[str | SafeString]:
    """What happens next, and when, in sentences."""
    if job.status in TERMINAL:
        return [_("Nothing: the job has ended. A rerun would be a new job with the same input.")]
    if job.status == JobStatus.CANCEL_REQUESTED:
        said = _("Its worker %(worker)s stops within a second, or loses the job when the lease ends:")
        return [format_html("{} {}", said % {"worker": job.locked_by}, _at(job.lock_until))]
    if job.status == JobStatus.RUNNING:
        said = _("It runs on %(worker)s. If the worker stops responding, the lease ends:")
        deadline = job.locked_at and job.locked_at + timedelta(seconds=job.timeout_seconds)
        return [
            format_html("{} {}", said % {"worker": job.locked_by}, _at(job.lock_until)),
            format_html("{} {}", _("The attempt's time is over:"), _at(deadline)),
        ]
    return [*_when_due(job), *(_closed(gate) for gate in gates), *_workers(workers)]


def _when_due(job: AiRuntimeJob) -> list[str | SafeString]:
    number = {"number": job.attempt_no + 1}
    if job.status == JobStatus.QUEUED:
        said: list[str | SafeString] = [_("Attempt %(number)d begins as soon as a worker of its lane is free.") % number]
    elif job.available_at > timezone.now():
        said = [format_html("{} {}", _("Attempt %(number)d is due:") % number, _at(job.available_at))]
    else:
        said = [_("Attempt %(number)d is due, and begins as soon as a worker of its lane is free.") % number]
    if job.offer_until is not None and job.offer_until > timezone.now():
        said.append(format_html("{} {}", _("It is kept for %(worker)s until") % {"worker": job.offered_to}, words.when(job.offer_until)))
    return said


def _closed(gate: ClaimGate) -> SafeString:
    if gate.kind == ClaimGate.Kind.BREAKER:
        said = _("%(key)s fails at the moment (%(reason)s); one job tries it again:") % {"key": gate.key, "reason": gate.reason}
        return format_html("{} {}", said, _at(gate.until))
    said = _("Not before %(key)s is resumed: %(by)s paused it (%(reason)s).")
    shown = said % {"key": gate.key, "by": gate.closed_by or "?", "reason": gate.reason or _("no reason given")}
    return format_html("{} {}", shown, _at(gate.until) if gate.until else "")


def _workers(count: int) -> list[str | SafeString]:
    if count:
        said = ngettext("%(count)d live worker of the lane knows this type.", "%(count)d live workers of the lane know this type.", count)
        return [said % {"count": count}]
    return [_("No live worker of the lane knows this type: start one, or it waits.")]


def _at(moment: Any) -> SafeString:
    """The time, and how far away it is."""
    if moment is None:
        return format_html("{}", words.NOTHING)
    away = moment - timezone.now()
    far = words.duration(abs(away))
    return format_html("{} ({})", words.when(moment), (_("in %(time)s") if away > timedelta() else _("%(time)s ago")) % {"time": far})
