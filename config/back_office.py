"""What holds for every answer under /admin/, error pages included: staff's language, and nothing kept by proxies or browsers."""

from csp.middleware import CSPMiddleware
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.locale import LocaleMiddleware
from django.utils import translation
from django.utils.cache import add_never_cache_headers

PREFIX = "/admin/"
_NO_PAGES = tuple(settings.CONTENT_SECURITY_POLICY["EXCLUDE_URL_PREFIXES"])


class ContentPolicyMiddleware(CSPMiddleware):
    """django-csp's own builds the policy for each answer, then leaves it out here: a twenty-fifth of what a runtime's result costs."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        return response if request.path_info.startswith(_NO_PAGES) else super().process_response(request, response)


class BackOfficeMiddleware(LocaleMiddleware):
    """Staff get the language of their cookie, else of their browser. API and protocol speak English whatever a client's headers say."""

    def process_request(self, request: HttpRequest) -> None:
        if request.path_info.startswith(PREFIX):
            super().process_request(request)
        else:
            # A thread keeps the language of what it served last.
            translation.activate(settings.LANGUAGE_CODE)
            request.LANGUAGE_CODE = settings.LANGUAGE_CODE

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if not request.path_info.startswith(PREFIX):
            return response
        add_never_cache_headers(response)
        return super().process_response(request, response)
