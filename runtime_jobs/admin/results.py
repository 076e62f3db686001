"""What attempts delivered."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from runtime_jobs import registry
from runtime_jobs.admin import json_tree, vocabulary, words
from runtime_jobs.admin.job_page import SENSITIVE, job_url
from runtime_jobs.admin.readonly import ReadOnlyAdmin
from runtime_jobs.models import AiRuntimeResult
from runtime_jobs.services.audit import sensitive_viewed
from runtime_jobs.services.events import Actor

_MOST_RAW = 100_000  # characters


@admin.register(AiRuntimeResult)
class ResultAdmin(ReadOnlyAdmin):
    list_display = ("id", "job", "status", "attempt_no", "schema_version", "created_at")
    list_select_related = ("job",)
    search_fields = ("id",)
    search_help_text = gettext_lazy("a result's or a job's id")
    search_uuids = ("pk", "job_id")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("raw_output", "validated_output", "job__internal_error", "job__lock_token")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The page of a result. `?clear` shows sensitive text to who may see it, and that is recorded."""
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        result = self.get_object(request, object_id)
        if result is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        clear = "clear" in request.GET
        if clear:
            if not request.user.has_perm(SENSITIVE):
                raise PermissionDenied
            sensitive_viewed(result.job_id, actor=Actor.of(request.user), what=f"result of attempt {result.attempt_no}")
        context = {
            **self.admin_site.each_context(request),
            **_page(result, clear=clear),
            "title": _("Result of attempt %(number)d") % {"number": result.attempt_no},
            "subtitle": str(result.pk),
            "may_see_clear": request.user.has_perm(SENSITIVE),
            "clear": clear,
            "opts": self.opts,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/runtime_jobs/result.html", {**context, **(extra_context or {})})


def _page(result: AiRuntimeResult, *, clear: bool) -> dict[str, Any]:
    output = result.validated_output
    shown = json_tree.tree(registry.visible(result.job.job_type, output, clear=clear)) if output is not None else None
    return {
        "result": result,
        "status": vocabulary.outcome(result.status),
        "job_url": job_url(result.job_id),
        "output": shown,
        # The model's own text: no definition knows how to redact it.
        "raw_output": result.raw_output[:_MOST_RAW] if clear else None,
        "raw_is_cut": clear and len(result.raw_output) > _MOST_RAW,
        "created": words.when(result.created_at),
    }
