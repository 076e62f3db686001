"""What every endpoint does before its own checks, and after its answer."""

from collections.abc import Callable
from typing import Any, NoReturn

from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSetMixin

from runtime_jobs.services import events
from runtime_protocol import requests, trace
from runtime_protocol.auth import ServiceTokenAuthentication
from runtime_protocol.envelope import OURS
from runtime_protocol.errors import ProtocolError, answer
from runtime_protocol.throttling import TokenThrottle

# What a call of a lease's holder may meet, beside its own.
HELD = ("job_not_found", "job_lock_lost", "job_cancelled", "job_already_finished")


class ProtocolView(APIView):
    """In the order of the checks: authentication, rate, protocol version, form of the answer; then the method and what it checks."""

    authentication_classes = [ServiceTokenAuthentication]
    permission_classes = []
    throttle_classes = [TokenThrottle]
    parser_classes = [JSONParser]  # for the contract; bodies are read by requests.read_json
    renderer_classes = [JSONRenderer]
    http_method_names = ["get", "head", "post"]
    cache_control = "no-store"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self.format_kwarg = None
        self.perform_authentication(request)
        self.check_throttles(request)
        requests.check_version(request)
        request.accepted_renderer, request.accepted_media_type = self.perform_content_negotiation(request)

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        # At once, where there is one form and the client says what all clients say.
        if len(self.renderer_classes) == 1 and request.headers.get("Accept", "*/*") in ("*/*", JSONRenderer.media_type):
            return JSONRenderer(), JSONRenderer.media_type
        return super().perform_content_negotiation(request, force)

    def get_exception_handler(self) -> Callable[..., Response | None]:
        return answer

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if isinstance(response, Response) and response.exception:
            # A failure is JSON, whatever was asked for.
            response.accepted_renderer, response.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
        response.headers.setdefault("Cache-Control", self.cache_control)
        setattr(response, OURS, True)
        # Our own line in the log tells all; Django's would tell the path.
        response._has_been_logged = True
        return response


class ProtocolViewSet(ViewSetMixin, ProtocolView):
    """The same for several methods of one thing."""


class Nothing(ProtocolView):
    """Whatever else is asked for, so that it too needs a token and is answered in JSON."""

    schema = None

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise ProtocolError("not_found")


def on_behalf(request: Request) -> Any:
    """What happens to the job inside is recorded with the request's ids and the token's."""
    found = trace.of(request)
    return events.on_behalf_of(request_id=found.request_id, traceparent=found.traceparent, service_token=found.key_id)
