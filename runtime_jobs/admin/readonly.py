"""What staff may look at and only services write."""

import json
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from runtime_jobs import registry
from runtime_jobs.admin.paginator import CappedPaginator
from runtime_jobs.redaction import redact_json

SENSITIVE = "runtime_jobs.view_sensitive"


class ReadOnlyAdmin(admin.ModelAdmin):
    """Newest first along the primary key (UUIDs of version 7), counted to a cap, nothing to add, change or delete."""

    ordering = ("-id",)
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # each count would read the whole table
    list_per_page = 50
    list_max_show_all = 50
    actions: Any = ()
    # The columns that searches look at by equality or as a UUID: all indexed.
    search_exact: tuple[str, ...] = ()
    search_uuids: tuple[str, ...] = ("pk",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            key: UUID | None = UUID(term)
        except ValueError:
            key = None
        matching = queryset.none()
        for name in self.search_uuids if key else ():
            matching = matching | queryset.filter(**{name: key})
        for name in self.search_exact:
            matching = matching | queryset.filter(**{name: term})
        return matching, False


def shown_json(request: HttpRequest, value: Any, job_type: str) -> str:
    """A payload or output as this person may see it: without the permission as its definition redacts it; secrets' members never."""
    definition = registry.find(job_type)
    if not request.user.has_perm(SENSITIVE):
        value = definition.redact(value) if definition else "[redacted]"
    return format_html("<pre class='json'>{}</pre>", json.dumps(redact_json(value), indent=2, ensure_ascii=False))
