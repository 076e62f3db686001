"""The dashboard: what stands in queries/dashboard.py, in words, each figure with a link to the list that it counts."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.cache import cache
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from runtime_jobs.admin import charts, numbers, vocabulary, words
from runtime_jobs.admin.charts import Bar, Chart, Part
from runtime_jobs.models import ClaimGate
from runtime_jobs.queries import dashboard
from runtime_jobs.queries.dashboard import COUNT_CAP, Bucket, Figures, LaneNow, Now, Sums, Window
from runtime_jobs.services.workers import ALIVE_SECONDS
from runtime_jobs.states import JobStatus

SECONDS = 10  # between two refreshes
SHARED_SECONDS = 5  # how old what one process shows to many may be
_STALE_SECONDS = 600
_REASONS = 8  # why jobs failed: the most frequent
Link = Callable[..., str]


@dataclass(frozen=True)
class Tile:
    """A figure. `tone` is good, bad, warn or nothing; what it says stands in the words too."""

    label: str
    value: str
    note: str = ""
    url: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Cell:
    text: str
    url: str = ""
    hover: str = ""
    number: bool = True


def context(request: HttpRequest) -> dict[str, Any]:
    """What the template needs; nothing but `may_view` for whoever may not see jobs."""
    if not request.user.has_perm("runtime_jobs.view_airuntimejob"):
        return {"may_view": False}
    window: Window = next((one for one in dashboard.WINDOWS if one == request.GET.get("window")), "24h")
    now: Now = _shared("now", lambda: dashboard.now(alive_seconds=ALIVE_SECONDS))
    figures: Figures = _shared(f"figures.{window}", lambda: dashboard.figures(window))
    link = _linker(request)
    return {
        "may_view": True,
        "live_seconds": SECONDS,
        "tiles": _tiles(now, figures, link),
        "lanes": [_lane(lane, now.at, link) for lane in now.lanes],
        "gates": [_gate(gate, now.at) for gate in now.gates],
        "gates_url": link("claimgate"),
        "windows": [(one, _window(one), f"?window={one}", one == window) for one in dashboard.WINDOWS],
        "charts": _charts(figures, link),
        "job_types": [_kind(name, sums, figures, link) for name, sums in figures.job_types],
        "models": [_model(provider, model, sums, figures, link) for (provider, model), sums in figures.models],
        "errors": [
            (code, vocabulary.public_error(code), numbers.whole(count), _ended(link, figures, error_code=code))
            for code, count in figures.errors[:_REASONS]
        ],
        "failures": [(job, link("airuntimejob", job.pk), _ago(now.at, job.finished_at)) for job in now.failures],
        "counted_at": figures.counted_at,
        "warnings": [warning for warning in (_is_stale(now, figures), _is_held(now)) if warning],
    }


def _shared(name: str, make: Callable[[], Any]) -> Any:
    """What was made at most SHARED_SECONDS ago for anybody who looks, so that twenty open tabs cost what one does."""
    return cache.get_or_set(f"runtime_jobs.dashboard.{name}", make, SHARED_SECONDS)


def _linker(request: HttpRequest) -> Link:
    """A link to a list with a filter, or to a row's page; empty where the person may not view it."""

    def link(model: str, pk: Any = None, /, **query: str) -> str:
        if not request.user.has_perm(f"runtime_jobs.view_{model}"):
            return ""
        if pk is not None:
            return reverse(f"admin:runtime_jobs_{model}_change", args=[pk])
        url = reverse(f"admin:runtime_jobs_{model}_changelist")
        return f"{url}?{urlencode(query)}" if query else url

    return link


def _ended(link: Link, figures: Figures, bucket: Bucket | None = None, **query: str) -> str:
    """The jobs that ended in the window, or in one of its parts."""
    start, end = (bucket.start, bucket.end) if bucket else (figures.start, figures.end)
    return link("airuntimejob", **query, ended_since=_typed(start), ended_until=_typed(end))


def _called(link: Link, figures: Figures, bucket: Bucket | None = None, **query: str) -> str:
    """The calls that began in the window, or in one of its parts."""
    start, end = (bucket.start, bucket.end) if bucket else (figures.start, figures.end)
    return link("aiusagelog", **query, since=_typed(start), until=_typed(end))


def _typed(moment: datetime) -> str:
    """As the control of the list's filter form gives it."""
    return f"{timezone.localtime(moment):%Y-%m-%dT%H:%M}"


def _window(window: Window) -> str:
    return {"24h": _("24 hours"), "7d": _("7 days"), "30d": _("30 days")}[window]


def _tiles(now: Now, figures: Figures, link: Link) -> list[Tile]:
    running, cancelling = sum(lane.running for lane in now.lanes), sum(lane.cancelling for lane in now.lanes)
    queued, retrying = sum(lane.queued for lane in now.lanes), sum(lane.retrying for lane in now.lanes)
    more = any(lane.queued > COUNT_CAP for lane in now.lanes)
    workers, draining = sum(lane.workers for lane in now.lanes), sum(lane.draining for lane in now.lanes)
    oldest = min((lane.oldest_created_at for lane in now.lanes if lane.oldest_created_at), default=None)
    breakers = sum(gate.kind == ClaimGate.Kind.BREAKER for gate in now.gates)
    total = figures.total
    return [
        Tile(
            _("Running"), numbers.capped(running, COUNT_CAP),
            _("%(count)s being cancelled") % {"count": numbers.whole(cancelling)} if cancelling else "",
            link("airuntimejob", status__exact=JobStatus.RUNNING),
        ),
        Tile(
            _("Queued"), f"{numbers.whole(queued)}+" if more else numbers.whole(queued),
            _("the oldest for %(time)s") % {"time": words.duration(now.at - oldest)} if oldest else _("nothing waits"),
            link("airuntimejob", status__exact=JobStatus.QUEUED),
        ),
        Tile(
            _("Retrying"), numbers.capped(retrying, COUNT_CAP), _("wait for their next attempt") if retrying else "",
            link("airuntimejob", status__exact=JobStatus.RETRYING), "warn" if retrying else "",
        ),
        Tile(
            _("Success rate"), numbers.percent(total.success_rate), _("%(failed)s failed of %(ended)s ended") % {
                "failed": numbers.whole(total.failed), "ended": numbers.whole(total.ended),
            },
            _ended(link, figures, status__exact=JobStatus.FAILED), _rate_tone(total),
        ),
        Tile(
            _("Tokens"), numbers.short(total.tokens), _("%(input)s in, %(output)s out") % {
                "input": numbers.short(total.input_tokens), "output": numbers.short(total.output_tokens),
            },
            _called(link, figures),
        ),
        Tile(_("Cost"), _cost(total), _unpriced(total), _called(link, figures)),
        Tile(
            _("Workers alive"), numbers.whole(workers + draining),
            _("%(count)s draining") % {"count": numbers.whole(draining)} if draining else "",
            link("runtimeinstance"), "" if workers else "bad",
        ),
        Tile(
            _("Open breakers"), numbers.whole(breakers), _("and %(count)s paused") % {"count": numbers.whole(len(now.gates) - breakers)},
            link("claimgate"), "bad" if breakers else "warn" if now.gates else "",
        ),
        Tile(
            _("Parked events"), numbers.capped(now.parked, COUNT_CAP),
            _("%(count)s on their way") % {"count": numbers.capped(now.undelivered, COUNT_CAP)},
            link("aieventdelivery", state="parked"), "bad" if now.parked else "",
        ),
    ]  # fmt: skip


def _rate_tone(sums: Sums) -> str:
    rate = sums.success_rate
    return "" if rate is None else "good" if rate >= 0.95 else "warn" if rate >= 0.8 else "bad"


def _cost(sums: Sums) -> str:
    """What nobody knows is not nothing."""
    return "–" if sums.calls and sums.calls_unpriced == sums.calls else numbers.money(sums.cost_usd)


def _unpriced(sums: Sums) -> str:
    calls = _("%(count)s calls") % {"count": numbers.whole(sums.calls)}
    return (
        _("%(calls)s, %(count)s unpriced") % {"calls": calls, "count": numbers.whole(sums.calls_unpriced)} if sums.calls_unpriced else calls
    )


def _lane(lane: LaneNow, at: datetime, link: Link) -> dict[str, Any]:
    def jobs(status: JobStatus) -> str:
        return link("airuntimejob", status__exact=status, lane__exact=lane.lane)

    waited = at - lane.oldest_created_at if lane.oldest_created_at else None
    return {
        "name": vocabulary.lane(lane.lane),
        "url": link("airuntimejob", lane__exact=lane.lane),
        "unserved": bool((lane.queued or lane.retrying) and not lane.workers),
        "cells": [
            Cell(numbers.capped(lane.running, COUNT_CAP), jobs(JobStatus.RUNNING)),
            Cell(numbers.capped(lane.queued, COUNT_CAP), jobs(JobStatus.QUEUED)),
            Cell(words.duration(waited) if waited is not None else "–", hover=_exact(lane.oldest_created_at)),
            Cell(numbers.capped(lane.retrying, COUNT_CAP), jobs(JobStatus.RETRYING)),
            Cell(_until(at, lane.next_retry_at), hover=_exact(lane.next_retry_at)),
            Cell(numbers.whole(lane.workers + lane.draining), link("runtimeinstance")),
        ],
    }


def _gate(gate: ClaimGate, at: datetime) -> dict[str, Any]:
    return {
        "is_breaker": gate.kind == ClaimGate.Kind.BREAKER,
        "kind": _("breaker") if gate.kind == ClaimGate.Kind.BREAKER else _("pause"),
        "key": gate.key,
        "reason": gate.reason,
        "since": _ago(at, gate.created_at),
        "until": _until(at, gate.until) if gate.until else _("until somebody resumes it"),
    }


def _charts(figures: Figures, link: Link) -> list[Chart]:
    by_hour = figures.window == "24h"
    named = [(bucket, _bucket_name(bucket, by_hour)) for bucket in figures.buckets]
    places = [0, len(named) // 3, 2 * len(named) // 3, len(named) - 1]
    axis = [named[place][1] for place in places]
    when = _("Hour") if by_hour else _("Day")

    def chart(title: str, parts: Callable[[Sums], list[Part]], said: Callable[[Sums], str], top: Any, to: Callable[..., str]) -> Chart:
        bars = [Bar(name, parts(bucket.sums), said(bucket.sums), to(link, figures, bucket)) for bucket, name in named]
        return charts.draw(title, bars, top=top, axis=axis, header=(when, title))

    return [
        chart(_("Jobs that ended"), _job_parts, _jobs_said, numbers.short, _ended),
        chart(_("Tokens"), _token_parts, _tokens_said, numbers.short, _called),
        chart(_("Cost in US dollars"), lambda sums: [Part("in", _("cost"), float(sums.cost_usd))],
              _cost, numbers.money, _called),
    ]  # fmt: skip


def _job_parts(sums: Sums) -> list[Part]:
    return [
        Part("good", vocabulary.status(JobStatus.SUCCEEDED), sums.succeeded),
        Part("bad", vocabulary.status(JobStatus.FAILED), sums.failed),
        Part("other", vocabulary.status(JobStatus.CANCELLED), sums.cancelled),
    ]


def _jobs_said(sums: Sums) -> str:
    return _("%(succeeded)s succeeded, %(failed)s failed, %(cancelled)s cancelled") % {
        "succeeded": numbers.whole(sums.succeeded),
        "failed": numbers.whole(sums.failed),
        "cancelled": numbers.whole(sums.cancelled),
    }


def _token_parts(sums: Sums) -> list[Part]:
    return [Part("in", _("input"), sums.input_tokens), Part("out", _("output"), sums.output_tokens)]


def _tokens_said(sums: Sums) -> str:
    return _("%(input)s in, %(output)s out") % {"input": numbers.whole(sums.input_tokens), "output": numbers.whole(sums.output_tokens)}


def _bucket_name(bucket: Bucket, by_hour: bool) -> str:
    start = timezone.localtime(bucket.start)
    return f"{start:%H:%M}" if by_hour else date_format(start, "MONTH_DAY_FORMAT")


def _kind(name: str, sums: Sums, figures: Figures, link: Link) -> dict[str, Any]:
    return {
        "name": name,
        "url": _ended(link, figures, job_type=name),
        "rate": sums.success_rate,
        "rate_width": f"{100 * (sums.success_rate or 0):.1f}",
        "cells": [
            Cell(numbers.whole(sums.ended), _ended(link, figures, job_type=name)),
            Cell(numbers.whole(sums.failed), _ended(link, figures, job_type=name, status__exact=JobStatus.FAILED)),
            Cell(numbers.percent(sums.success_rate)),
            Cell(numbers.short(sums.tokens), hover=_tokens_said(sums)),
            Cell(_cost(sums), hover=_unpriced(sums)),
        ],
    }


def _model(provider: str, model: str, sums: Sums, figures: Figures, link: Link) -> dict[str, Any]:
    calls = _called(link, figures, provider=provider, model=model)
    answered = 1 - sums.calls_failed / sums.calls if sums.calls else None
    return {
        "name": f"{provider} / {model}",
        "url": calls,
        "rate": answered,
        "rate_width": f"{100 * (answered or 0):.1f}",
        "cells": [
            Cell(numbers.whole(sums.calls), calls),
            Cell(numbers.whole(sums.calls_failed), _called(link, figures, provider=provider, model=model)),
            Cell(numbers.percent(answered)),
            Cell(numbers.short(sums.tokens), hover=_tokens_said(sums)),
            Cell(_cost(sums), hover=_unpriced(sums)),
        ],
    }


def _is_stale(now: Now, figures: Figures) -> str:
    """Why the figures are not of this minute; empty while they are."""
    if figures.counted_at is None:
        return _("Nothing has been counted yet: a worker of the engine does it within a minute, or `manage.py roll_up_figures`.")
    age = now.at - figures.counted_at
    if age.total_seconds() < _STALE_SECONDS:
        return ""
    return _("These figures are %(time)s old: no worker of the engine counts. Start one, or run `manage.py roll_up_figures`.") % {
        "time": words.duration(age)
    }


def _is_held(now: Now) -> str:
    """Who keeps the database from cleaning up; empty when nobody does."""
    if now.held_since is None:
        return ""
    return _(
        "A transaction has been open for %(time)s. Until it ends the database cannot clean up behind jobs, and claims get slower: "
        "find it in pg_stat_activity and end it."
    ) % {"time": words.duration(now.at - now.held_since)}


def _ago(at: datetime, moment: datetime | None) -> str:
    if moment is None:
        return "–"
    return _("%(time)s ago") % {"time": words.duration(at - moment)}


def _until(at: datetime, moment: datetime | None) -> str:
    if moment is None:
        return "–"
    if moment <= at:
        return _("now")
    return _("in %(time)s") % {"time": words.duration(moment - at)}


def _exact(moment: datetime | None) -> str:
    return words.exact(moment) if moment else ""
