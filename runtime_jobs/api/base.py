"""What all views of the API share: who may come in, what may be asked, and how it says no."""

from collections.abc import Callable
from io import BytesIO
from typing import Any, ClassVar

from django.utils.cache import patch_cache_control
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import ParseError, PermissionDenied, ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from runtime_jobs.api.errors import BodyTooLarge, answer

MAX_BODY_BYTES = 16_384


class SessionLogin(SessionAuthentication):
    """The login of the site. Unlike DRF's it tells "log in first" (401) from "not for you" (403)."""

    def authenticate_header(self, request: Request) -> str:
        return 'Session realm="api"'

    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied as refusal:
            raise PermissionDenied(
                f"{refusal.detail} Send the value of the csrftoken cookie in the header X-CSRFToken.", code="csrf_failed"
            ) from None


class SmallJsonParser(JSONParser):
    """JSON of at most MAX_BODY_BYTES: DRF reads a JSON body past DATA_UPLOAD_MAX_MEMORY_SIZE, whatever its size (3.18)."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        body = stream.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"The request's body is larger than {MAX_BODY_BYTES:,} bytes.")
        try:
            return super().parse(BytesIO(body), media_type, parser_context)
        except RecursionError:
            raise ParseError("JSON parse error - nested too deeply") from None


class ApiView(APIView):
    """Named here and not in the settings, so that other apps' views are left alone."""

    authentication_classes = [SessionLogin]
    permission_classes = [IsAuthenticated]
    parser_classes = [SmallJsonParser]
    renderer_classes = [JSONRenderer]
    http_method_names = ["get", "head", "post"]
    # The query parameters that there are, and those of them that may be repeated.
    query_parameters: ClassVar[frozenset[str]] = frozenset()
    repeatable: ClassVar[frozenset[str]] = frozenset()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self._check_query(request)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response]:
        return answer

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        patch_cache_control(response, private=True, no_store=True)
        return response

    def _check_query(self, request: Request) -> None:
        """A misspelt filter that is ignored would show the wrong jobs and look right."""
        findings: dict[str, list[str]] = {}
        for name, values in request.query_params.lists():
            if name not in self.query_parameters:
                known = ", ".join(sorted(self.query_parameters)) or "none"
                findings[name[:100]] = [f"There is no such query parameter. Known: {known}."]
            elif len(values) > 1 and name not in self.repeatable:
                findings[name] = ["This query parameter may be given once."]
            elif "" in values:
                findings[name] = ["This query parameter is empty. Leave it out, or give a value."]
        if findings:
            raise ValidationError(findings)
