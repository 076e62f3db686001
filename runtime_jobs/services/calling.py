"""The gateway with this system's settings, and one small call that shows whether a credential works."""

from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.views.decorators.debug import sensitive_variables

from runtime_jobs import gateway, registry
from runtime_jobs.abort import Aborted, AbortSignal
from runtime_jobs.errors import AttemptError, ErrorCode, InvalidRequest
from runtime_jobs.gateway import AddressPolicy, AddressRefused, AiGatewayService
from runtime_jobs.model_call import CallReport, Message, ModelRequest
from runtime_jobs.models import AiModelCredential
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import redact
from runtime_jobs.services import credentials
from runtime_jobs.services.audit import record_staff
from runtime_jobs.services.events import Actor
from runtime_jobs.states import ApiKeyMode

TEST_SECONDS = 20.0
# Enough for models that think before they answer to say anything at all.
_TEST_REQUEST = ModelRequest((Message("user", "Answer with the word OK."),), max_output_tokens=64)


def address_policies() -> dict[ApiKeyMode, AddressPolicy]:
    """A user's own address must be public; the platform's is set by an administrator, who may mean a private one."""
    loopback = settings.ALLOW_LOOPBACK_PROVIDERS
    return {
        ApiKeyMode.USER: AddressPolicy(allow_loopback_http=loopback),
        ApiKeyMode.PLATFORM: AddressPolicy(allow_loopback_http=loopback, allow_private=True),
    }


def make_service() -> AiGatewayService:
    """A process's gateway."""
    policies = address_policies()
    return AiGatewayService(user_addresses=policies[ApiKeyMode.USER], platform_addresses=policies[ApiKeyMode.PLATFORM])


def check_base_url(base_url: str, mode: ApiKeyMode) -> None:
    """Raises InvalidRequest when no call could ever go there. Names are resolved when a call is made, not here."""
    try:
        address_policies()[mode].parse(base_url)
    except AddressRefused as refused:
        raise InvalidRequest(f"{refused}."[0].upper() + f"{refused}."[1:], field="base_url") from None


def models_of(provider: str) -> list[str]:
    """The models that this system's definitions ask this provider for; the usual one first."""
    usual = [settings.DEFAULT_MODEL_NAME] if provider == settings.DEFAULT_MODEL_PROVIDER else []
    definitions = [registry.get(job_type) for job_type in registry.job_types()]
    return list(dict.fromkeys(usual + [one.model_name for one in definitions if one.model_provider == provider and one.model_name]))


@dataclass(frozen=True)
class CallTest:
    """What came of a test call. `code` is empty when the provider answered; `detail` is for staff and holds no key."""

    code: str
    detail: str
    model: str
    latency_ms: int | None
    tokens: int | None
    http_status: int | None


@sensitive_variables()
def try_credential(credential_id: UUID, *, model: str, actor: Actor) -> CallTest:
    """Make one small call with this credential, as a job would, and note who did. It costs a few tokens, which no job is charged with.

    Takes at most TEST_SECONDS. Raises InvalidRequest when there is no such live credential. Not to be called inside a transaction.
    """
    credential = AiModelCredential.objects.filter(pk=credential_id).first()
    if credential is None or credential.revoked_at is not None:
        raise InvalidRequest("There is no such credential, or it is revoked.", field="credential")
    mode = ApiKeyMode.PLATFORM if credential.user_id is None else ApiKeyMode.USER
    report, code, detail = CallReport(), "", ""
    try:
        target = credentials.open_sealed(credential, mode=mode, user_id=credential.user_id or 0, model=model)
        call = make_service().complete(target, _TEST_REQUEST, report, call_id=new_id(), timeout_seconds=TEST_SECONDS)
        gateway.run(call, AbortSignal(TEST_SECONDS))
    except AttemptError as error:
        # A model that spends all its tokens on thinking has shown that the key works.
        if error.code != ErrorCode.OUTPUT_TRUNCATED:
            code, detail = str(error.code), redact(error.internal, credentials.known_secrets(credential), limit=500)
    except Aborted:
        code, detail = str(ErrorCode.PROVIDER_UNAVAILABLE), "the server is stopping"
    used = [count for count in (report.usage.input_tokens, report.usage.output_tokens) if count is not None]
    found = CallTest(code, detail, report.model_used or model, report.latency_ms, sum(used) if used else None, report.http_status)
    data = {"model": model, "error_code": code, "tokens": found.tokens, "latency_ms": found.latency_ms}
    record_staff("credential.tested", actor=actor, subject_type="credential", subject_id=str(credential.pk), data=data)
    return found
