"""Who may come in: `Authorization: Bearer rt_<keyId>_<secret>`, and nothing else."""

from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from runtime_jobs.services import service_tokens
from runtime_jobs.services.service_tokens import ServiceToken
from runtime_protocol import trace
from runtime_protocol.errors import ProtocolError, unauthorized
from runtime_protocol.server import database


class Caller:
    """The authenticated token, with the database's clock as it stood then."""

    is_authenticated = True

    def __init__(self, token: ServiceToken, clock: datetime) -> None:
        self.token = token
        self._clock, self._at = clock, monotonic()

    @property
    def pk(self) -> str:
        """By what requests are counted."""
        return self.token.key_id

    @property
    def server_time(self) -> datetime:
        """The database's time now, without asking again: it was asked when the request came in."""
        return self._clock + timedelta(seconds=monotonic() - self._at)

    def require(self, scope: str) -> None:
        if scope not in self.token.scopes:
            raise ProtocolError("scope_denied", f"The token lacks the scope {scope}.")

    def require_instance(self, instance: str) -> None:
        if not self.token.speaks_for(instance):
            raise ProtocolError("instance_not_allowed")


class ServiceTokenAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Any, Any]:
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not presented.strip():
            raise unauthorized("token_missing")
        with database():
            token, clock = service_tokens.authenticate(presented.strip())
        trace.of(request).key_id = token.key_id
        return Caller(token, clock), token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class ServiceTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Found by drf-spectacular because the class exists."""

    target_class = ServiceTokenAuthentication
    name = "serviceToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A service token, `rt_<keyId>_<secret>`."}
