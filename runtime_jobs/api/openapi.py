"""The API's description: what drf-spectacular cannot read from the code. `openapi.yaml` beside it is generated."""

from collections.abc import Sequence
from typing import Any

from drf_spectacular.authentication import SessionScheme
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from runtime_jobs.api.serializers import ErrorSerializer

CSRF_HEADER = OpenApiParameter(
    "X-CSRFToken", str, OpenApiParameter.HEADER, required=True, description="The value of the `csrftoken` cookie, which the login sets."
)

_FAILURES = {
    400: "A parameter or the body is wrong; `details` names it.",
    401: "Not logged in.",
    403: "The CSRF token is missing or wrong, or a permission is needed.",
    404: "There is no such job, or none that you may see.",
    406: "JSON is the only format.",
    409: "The job has ended already; `details` names its status.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    500: "Something went wrong on our side.",
}


class SessionLoginScheme(SessionScheme):  # type: ignore[no-untyped-call]
    """Found by drf-spectacular because the class exists."""

    target_class = "runtime_jobs.api.base.SessionLogin"
    priority = 0


def failures(*codes: int) -> dict[int, OpenApiResponse]:
    return {code: OpenApiResponse(ErrorSerializer, _FAILURES[code]) for code in (*codes, 500)}


def only_the_user_api(endpoints: Sequence[tuple[str, str, str, Any]], **_: Any) -> list[tuple[str, str, str, Any]]:
    """Preprocessing hook: other apps with DRF views are none of this document's business."""
    return [endpoint for endpoint in endpoints if endpoint[0].startswith("/api/")]
