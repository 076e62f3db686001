"""Our admin site: plain django.contrib.admin under our name, with our sections, log-in form and language choice.

Not in runtime_jobs.admin: importing that package registers its pages, which needs this class to be there already.
"""

from dataclasses import dataclass
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.i18n import set_language

from config.login import LoginForm
from config.request_ids import with_request_id
from runtime_protocol import pages


@dataclass(frozen=True)
class Section:
    label: str | Promise
    url: str
    current: bool
    key: str = ""  # `g` and this key go there


# By model, in the order of the bar. Whoever may not view one does not see it.
_SECTIONS = {
    "AiRuntimeJob": _("Jobs"),
    "AiRuntimeResult": _("Results"),
    "AiUsageLog": _("Provider calls"),
    "AiJobEvent": _("Events"),
    "AiEventDelivery": _("Deliveries"),
    "RuntimeInstance": _("Workers"),
    "ClaimGate": _("Pauses"),
    "AiStaffEvent": _("Staff actions"),
    "AiModelCredential": _("Credentials"),
    "RuntimeServiceToken": _("Service tokens"),
    "User": _("Users"),
    "Group": _("Roles"),
}
_KEYS = {"AiRuntimeJob": "j"}


class JobAdminSite(AdminSite):
    site_header = _("AI jobs")
    site_title = _("AI jobs")
    index_title = _("Dashboard")
    site_url = None
    enable_nav_sidebar = False  # the lists need its width
    login_form = LoginForm

    def get_urls(self) -> list[URLPattern | URLResolver]:
        return [
            path("language/", set_language, name="set_language"),
            path("runtime-protocol/", self.admin_view(pages.document), name="runtime_protocol"),
            path("runtime-protocol/openapi.yaml", self.admin_view(pages.contract), name="runtime_protocol_contract"),
            *super().get_urls(),
        ]

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Whatever a page records carries the request's id, which the answer and the log name too."""
        return super().admin_view(with_request_id(view), cacheable)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        context = super().each_context(request)
        # What this person may see is in there already, so the bar asks nothing of the database.
        urls = {model["object_name"]: model["admin_url"] for app in context["available_apps"] for model in app["models"]}
        return {**context, "sections": _sections(request, urls), "jobs_url": urls.get("AiRuntimeJob")}

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        # Here, since importing runtime_jobs.admin needs this site.
        from runtime_jobs.admin import dashboard

        return super().index(request, {**dashboard.context(request), **(extra_context or {})})

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        response = super().login(request, extra_context)
        form = (getattr(response, "context_data", None) or {}).get("form")
        if form is not None and form.is_throttled:
            response.status_code = 429
        return response


def _sections(request: HttpRequest, urls: dict[str, str]) -> list[Section]:
    if not request.user.is_active or not request.user.is_staff:
        return []
    index = reverse("admin:index")
    found = [
        Section(label, urls[model], request.path.startswith(urls[model]), _KEYS.get(model, ""))
        for model, label in _SECTIONS.items()
        if urls.get(model)
    ]
    if pages.may_read(request.user):
        url = reverse("admin:runtime_protocol")
        found.append(Section(_("Runtime protocol"), url, request.path.startswith(url)))
    return [Section(_("Dashboard"), index, request.path == index, "d"), *found]
