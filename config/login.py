"""The log-in form of the back office: a try is counted before the password is looked at."""

from typing import Any

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import ngettext
from django.views.decorators.debug import sensitive_variables

from runtime_jobs.services import login_throttle

THROTTLED = "throttled"


class LoginForm(AdminAuthenticationForm):
    @property
    def is_throttled(self) -> bool:
        return self.has_error("__all__", THROTTLED)

    @sensitive_variables()
    def clean(self) -> dict[str, Any]:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not username or not password:
            return self.cleaned_data
        address = client_address(self.request) if self.request else ""
        wait = login_throttle.begin(username, address)
        if wait:
            minutes = -(-wait // 60)
            sentence = ngettext(
                "Too many failed log-ins. Try again in %(minutes)d minute.",
                "Too many failed log-ins. Try again in %(minutes)d minutes.",
                minutes,
            )
            raise ValidationError(sentence % {"minutes": minutes}, code=THROTTLED)
        cleaned = super().clean()
        login_throttle.succeeded(username, address)
        return cleaned


def client_address(request: HttpRequest) -> str:
    """Who asks. Behind a proxy of ours (BEHIND_TLS_PROXY) the address that it saw, which it puts last; a client can forge all but that."""
    forwarded = request.headers.get("X-Forwarded-For", "") if settings.BEHIND_TLS_PROXY else ""
    return forwarded.rpartition(",")[2].strip() or request.META.get("REMOTE_ADDR", "")
