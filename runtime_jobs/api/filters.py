"""The filters of the job list. Each is served by an index; what none serves is refused."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.dateparse import parse_datetime
from django_filters import CharFilter, FilterSet, IsoDateTimeFilter, MultipleChoiceFilter  # type: ignore[import-untyped]

from runtime_jobs import queries
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.models.base import choices
from runtime_jobs.states import JobStatus

Jobs = QuerySet[AiRuntimeJob]


class _InstantField(forms.Field):
    """A point in time with its offset: without one, two servers could read it differently."""

    def to_python(self, value: Any) -> datetime | None:
        if value in self.empty_values:
            return None
        try:
            moment = parse_datetime(value)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            # No percent sign here: django-filter formats the message once more (26.2).
            raise forms.ValidationError(
                "A time with its offset is needed, such as 2026-01-31T08:00:00Z. A plus sign must be URL-encoded.", "invalid"
            )
        return moment


class _InstantFilter(IsoDateTimeFilter):  # type: ignore[misc]
    field_class = _InstantField


class _JobFilterForm(forms.Form):
    def clean(self) -> dict[str, Any]:
        found = super().clean() or {}
        if self.data.get("targetId") and not self.data.get("targetType"):
            self.add_error("targetId", "Give targetType too: a target is known by both, and the index begins with its type.")
        after, before = found.get("createdAfter"), found.get("createdBefore")
        if after and before and before <= after:
            self.add_error("createdBefore", "This is not later than createdAfter.")
        return found


class JobFilter(FilterSet):  # type: ignore[misc]
    status = MultipleChoiceFilter(choices=choices(JobStatus), method="in_status")
    jobType = CharFilter(field_name="job_type", strip=False, max_length=100)
    targetType = CharFilter(field_name="target_type", strip=False, max_length=100)
    targetId = CharFilter(field_name="target_id", strip=False, max_length=200, help_text="Together with `targetType` only.")
    createdAfter = _InstantFilter(method="created_after", help_text="Created at this time or later.")
    createdBefore = _InstantFilter(method="created_before", help_text="Created before this time.")

    class Meta:
        form = _JobFilterForm

    def in_status(self, jobs: Jobs, name: str, value: Sequence[str]) -> Jobs:
        # The filter's own way is DISTINCT over ORs, which no index gives in order.
        return jobs.filter(status__in=value) if value else jobs

    def created_after(self, jobs: Jobs, name: str, value: datetime) -> Jobs:
        return queries.created_since(jobs, value)

    def created_before(self, jobs: Jobs, name: str, value: datetime) -> Jobs:
        return queries.created_before(jobs, value)
