"""What staff may look at and only services write."""

from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import PAGE_VAR
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from runtime_jobs.admin.paginator import CappedPaginator
from runtime_jobs.services.audit import record_staff
from runtime_jobs.services.events import Actor


class AuditedAdmin(admin.ModelAdmin):
    """What Django notes in its log, which goes with its user, is a staff event too."""

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._record(request, "added", obj, message)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._record(request, "changed", obj, message)
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for obj in queryset:
            self._record(request, "deleted", obj, "")
        return super().log_deletions(request, queryset)

    def _record(self, request: HttpRequest, what: str, obj: Any, message: Any) -> None:
        kind = str(self.opts.model_name)
        data = {"object": str(obj), "change": message}
        record_staff(f"{kind}.{what}", actor=Actor.of(request.user), subject_type=kind, subject_id=str(obj.pk), data=data)


class ReadOnlyAdmin(AuditedAdmin):
    """Newest first along the primary key (UUIDs of version 7), counted to a cap, nothing to add, change or delete."""

    ordering = ("-id",)
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # each count would read the whole table
    list_per_page = 50
    list_max_show_all = 50
    actions: Any = ()
    sortable_by: ClassVar[Any] = ()  # columns that an index gives in order
    # The columns that searches look at by equality or as a UUID: all indexed.
    search_exact: tuple[str, ...] = ()
    search_uuids: tuple[str, ...] = ("pk",)

    change_list_template = "admin/runtime_jobs/list.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method == "GET" and "" in request.GET.values():
            # What the filter form leaves empty filters nothing: an address that one can pass on has no such parts.
            given = urlencode([(name, value) for name, values in request.GET.lists() for value in values if value])
            return HttpResponseRedirect(f"{request.path}?{given}" if given else request.path)
        in_form = {name for chosen in self.list_filter for name in getattr(chosen, "in_form", ())}
        kept = [(name, value) for name, value in request.GET.items() if name not in in_form and name != PAGE_VAR]
        return super().changelist_view(request, {"kept": kept, **(extra_context or {})})

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """What a filter of ours takes, and nothing else: Django would let a URL search any column, also for parts of a token's hash."""
        allowed: set[str] = set()
        for chosen in self.list_filter:
            if isinstance(chosen, str):
                allowed |= {f"{chosen}__{kind}" for kind in ("exact", "isnull", "gte", "lt")}
            else:
                allowed |= set(getattr(chosen, "parameters", (chosen.parameter_name,)))  # type: ignore[union-attr]
        return lookup in allowed

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
