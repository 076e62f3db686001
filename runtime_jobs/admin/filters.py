"""The filters of the lists. Each is served by an index; together they are one form, which works without a script."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from runtime_jobs import queries, registry
from runtime_jobs.admin import vocabulary
from runtime_jobs.errors import ErrorCode
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.queries import lists
from runtime_jobs.states import JobStatus, Lane

Jobs = QuerySet[AiRuntimeJob]


@dataclass(frozen=True)
class Control:
    """One control of the filter form: a choice, or a text or time to type."""

    name: str
    label: Any
    value: str
    choices: Sequence[tuple[str, Any]] = ()
    kind: str = "text"


class FormFilter(admin.SimpleListFilter):
    """One or more parameters; empty ones filter nothing."""

    template = "admin/runtime_jobs/filter_controls.html"
    parameters: tuple[str, ...] = ()
    in_form: tuple[str, ...] = ()  # those that the form gives anew; the others it keeps

    def __init_subclass__(cls) -> None:
        cls.in_form = cls.parameters if cls.template == FormFilter.template else ()

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        self.given = {name: str(params.pop(name)[-1]).strip() for name in self.parameters if name in params}
        super().__init__(request, params, model, model_admin)

    def has_output(self) -> bool:
        return True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return []

    def expected_parameters(self) -> list[str | None]:
        return list(self.parameters)

    def given_value(self) -> str:
        return self.given.get(self.parameters[0], "")

    def controls(self) -> Iterator[Control]:
        raise NotImplementedError

    def choice(self, options: Sequence[tuple[str, Any]]) -> Control:
        """One of these for the first parameter."""
        return Control(self.parameters[0], self.title, self.given_value(), options)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """What the template gets."""
        return self.controls()


class _ChoiceFilter(FormFilter):
    column = ""

    def options(self) -> Sequence[tuple[str, Any]]:
        raise NotImplementedError

    def controls(self) -> Iterator[Control]:
        yield self.choice([("", _("All")), *self.options()])

    def queryset(self, request: HttpRequest, queryset: Jobs) -> Jobs:
        value = self.given_value()
        return queryset.filter(**{self.column: value}) if value else queryset


class StatusFilter(_ChoiceFilter):
    """Shown as chips above the list (list.html), not in the form."""

    title = gettext_lazy("status")
    parameter_name = "status__exact"
    parameters = ("status__exact",)
    column = "status"
    template = "admin/runtime_jobs/nothing.html"

    def options(self) -> Sequence[tuple[str, Any]]:
        return [(str(status), vocabulary.status(status)) for status in JobStatus]


class LaneFilter(_ChoiceFilter):
    title = gettext_lazy("lane")
    parameter_name = "lane__exact"
    parameters = ("lane__exact",)
    column = "lane"

    def options(self) -> Sequence[tuple[str, Any]]:
        return [(str(lane), vocabulary.lane(lane)) for lane in Lane]


class JobTypeFilter(_ChoiceFilter):
    """From the registry: Django's own filter would read the whole table for its distinct values."""

    title = gettext_lazy("job type")
    parameter_name = "job_type"
    parameters = ("job_type",)
    column = "job_type"

    def options(self) -> Sequence[tuple[str, Any]]:
        known = registry.job_types()
        # One that is registered no more has its jobs all the same.
        return [(name, name) for name in dict.fromkeys([*known, self.given_value()]) if name]


class ErrorCodeFilter(_ChoiceFilter):
    title = gettext_lazy("error")
    parameter_name = "error_code"
    parameters = ("error_code",)
    column = "error_code"

    def options(self) -> Sequence[tuple[str, Any]]:
        return [(str(code), str(code)) for code in ErrorCode]


class ProviderFilter(_ChoiceFilter):
    title = gettext_lazy("provider")
    parameter_name = "provider"
    parameters = ("provider",)
    column = "model_provider"

    def options(self) -> Sequence[tuple[str, Any]]:
        return [(name, name) for name in lists.providers()]


class UserFilter(FormFilter):
    title = gettext_lazy("user")
    parameter_name = "user"
    parameters = ("user",)

    def controls(self) -> Iterator[Control]:
        yield Control("user", _("user (whole name)"), self.given_value())

    def queryset(self, request: HttpRequest, queryset: Jobs) -> Jobs:
        name = self.given_value()
        if not name:
            return queryset
        users = get_user_model()
        user = None if "\x00" in name else users.objects.filter(**{users.USERNAME_FIELD: name}).values_list("pk", flat=True).first()
        return queryset.none() if user is None else queryset.filter(user_id=user)


_SPANS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}


class CreatedFilter(FormFilter):
    """The last hour, day …, or from one time to another."""

    title = gettext_lazy("created")
    parameter_name = "created"
    parameters = ("created", "since", "until")

    def controls(self) -> Iterator[Control]:
        spans = [
            ("", _("Any time")), ("1h", _("In the last hour")), ("24h", _("In the last 24 hours")), ("7d", _("In the last 7 days")),
            ("30d", _("In the last 30 days")),
        ]  # fmt: skip
        yield self.choice(spans)
        yield Control("since", _("created from"), self.given.get("since", ""), kind="datetime-local")
        yield Control("until", _("created before"), self.given.get("until", ""), kind="datetime-local")

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        start, end = self.bounds()
        if start is not None:
            queryset = queries.created_since(queryset, start)
        return queryset if end is None else queries.created_before(queryset, end)

    def bounds(self) -> tuple[datetime | None, datetime | None]:
        starts = [_moment(self.given.get("since", ""))]
        if span := _SPANS.get(self.given_value()):
            starts.append(timezone.now() - span)
        return max((start for start in starts if start), default=None), _moment(self.given.get("until", ""))


class EndedFilter(FormFilter):
    """From one time to another."""

    title = gettext_lazy("ended")
    parameter_name = "ended_since"
    parameters = ("ended_since", "ended_until")

    def controls(self) -> Iterator[Control]:
        yield Control("ended_since", _("ended from"), self.given.get("ended_since", ""), kind="datetime-local")
        yield Control("ended_until", _("ended before"), self.given.get("ended_until", ""), kind="datetime-local")

    def queryset(self, request: HttpRequest, queryset: Jobs) -> Jobs:
        return lists.ended_between(queryset, _moment(self.given.get("ended_since", "")), _moment(self.given.get("ended_until", "")))


class ModelFilter(FormFilter):
    """The provider, and the model asked for, of a call."""

    title = gettext_lazy("provider")
    parameter_name = "provider"
    parameters = ("provider", "model")

    def controls(self) -> Iterator[Control]:
        yield self.choice([("", _("All")), *((name, name) for name in lists.providers())])
        yield Control("model", _("model (whole name)"), self.given.get("model", ""))

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.given_value():
            queryset = queryset.filter(provider=self.given_value())
        return queryset.filter(model_requested=self.given["model"]) if self.given.get("model") else queryset


class RerunFilter(_ChoiceFilter):
    title = gettext_lazy("has been rerun")
    parameter_name = "rerun"
    parameters = ("rerun",)

    def options(self) -> Sequence[tuple[str, Any]]:
        return [("yes", _("Yes (the newest %(most)s)") % {"most": f"{lists.RERUN_CAP:,}"})]

    def queryset(self, request: HttpRequest, queryset: Jobs) -> Jobs:
        return lists.have_been_rerun(queryset) if self.given_value() == "yes" else queryset


JOB_FILTERS = (
    StatusFilter, LaneFilter, JobTypeFilter, ErrorCodeFilter, ProviderFilter, UserFilter, CreatedFilter, EndedFilter, RerunFilter,
)  # fmt: skip
CALL_FILTERS = (ModelFilter, CreatedFilter)


def _moment(text: str) -> datetime | None:
    """A time as the browser's control gives it, in the site's time zone where it names none; None when it is none."""
    try:
        moment = parse_datetime(text)
    except ValueError:
        return None
    return timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment
