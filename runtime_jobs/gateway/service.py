"""AiGatewayService: the one way to a model provider."""

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from uuid import UUID

from runtime_jobs.errors import AttemptError, ErrorCode
from runtime_jobs.gateway.adapter import Adapter
from runtime_jobs.gateway.addresses import AddressPolicy, AddressRefused
from runtime_jobs.gateway.answer import HttpAnswer
from runtime_jobs.gateway.anthropic import AnthropicMessages
from runtime_jobs.gateway.failures import TransportFailure
from runtime_jobs.gateway.openai_compatible import OpenAiCompatible
from runtime_jobs.gateway.quiet import quiet_client_loggers
from runtime_jobs.gateway.reading import read_answer
from runtime_jobs.gateway.transport import HttpCall, Transport
from runtime_jobs.model_call import CallReport, ModelAnswer, ModelRequest, ProviderTarget
from runtime_jobs.redaction import Secret
from runtime_jobs.states import ApiKeyMode

MAX_RESPONSE_BYTES = 4 * 1024 * 1024
CONNECT_TIMEOUT_SECONDS = 10.0

# Adapters by the provider's name; every other name is OpenAI-compatible.
ADAPTERS: Mapping[str, Adapter] = {"anthropic": AnthropicMessages()}

_BASE_HEADERS = {
    "accept": "application/json",
    # A bomb of 64 MB fits in 64 KB of gzip, so nothing compressed is asked for and nothing is ever unpacked.
    "accept-encoding": "identity",
    "content-type": "application/json",
    "user-agent": "ai-job-control-plane",
    "connection": "close",
}


class AiGatewayService:
    """Makes provider calls. Holds settings only: one instance serves all calls, threads and event loops of a process.

    `user_addresses` is the policy for base_urls that a user entered, `platform_addresses` for those of an administrator; by
    default both are the public internet over https. Sizes are in bytes, times in seconds. `adapters` adds to, or replaces,
    ADAPTERS.
    """

    def __init__(
        self,
        *,
        user_addresses: AddressPolicy | None = None,
        platform_addresses: AddressPolicy | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        ssl_context: ssl.SSLContext | None = None,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> None:
        self._policies = {
            ApiKeyMode.USER: user_addresses or AddressPolicy(),
            ApiKeyMode.PLATFORM: platform_addresses or AddressPolicy(),
        }
        self._adapters = {**ADAPTERS, **(adapters or {})}
        self._default_adapter: Adapter = OpenAiCompatible()
        self._transport = Transport(
            max_response_bytes=max_response_bytes, connect_timeout_seconds=connect_timeout_seconds, ssl_context=ssl_context
        )
        quiet_client_loggers()

    async def complete(
        self, target: ProviderTarget, request: ModelRequest, report: CallReport, *, call_id: UUID, timeout_seconds: float
    ) -> ModelAnswer:
        """Make exactly one HTTP request and read its answer; never retries.

        `report` is filled while the call runs, so an aborted one leaves what was known. `call_id` goes out as
        X-Client-Request-Id: the usage row's id, so that a provider's bill can be matched. `timeout_seconds` is for everything
        together, from the look-up of the name to the last byte. Raises AttemptError, without the client's exception behind it;
        a cancelled task closes its socket first.
        """
        started = time.monotonic()
        adapter = self._adapters.get(target.provider.lower(), self._default_adapter)
        try:
            call = self._call(adapter, target, request, call_id)
            report.request_bytes = len(call.content)
            answer = await self._exchange(call, report, timeout_seconds)
        finally:
            report.latency_ms = round((time.monotonic() - started) * 1000)
        result = read_answer(adapter, target, request, answer, report)
        if isinstance(result, AttemptError):
            raise result
        return result

    def _call(self, adapter: Adapter, target: ProviderTarget, request: ModelRequest, call_id: UUID) -> HttpCall:
        """Everything that can be wrong before a byte is sent: the key, the base_url."""
        if not _usable(target.api_key):
            # A key with a newline at its end would turn up whole in the client's "illegal header value".
            raise AttemptError(
                ErrorCode.PROVIDER_AUTH_FAILED,
                f"the {target.credential_mode}'s key is empty or holds characters that no key has; nothing was sent",
            )
        policy = self._policies[target.credential_mode]
        refused = ""
        try:
            url = policy.parse(target.base_url)
        except AddressRefused as error:
            refused = str(error)
        if refused:
            raise AttemptError(ErrorCode.PROVIDER_REJECTED_REQUEST, f"{refused}; nothing was sent")
        content = json.dumps(adapter.body(target, request), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        headers = {**_BASE_HEADERS, "x-client-request-id": str(call_id), **adapter.headers(target)}
        return HttpCall(url, adapter.path(url.path), headers, content, policy)

    async def _exchange(self, call: HttpCall, report: CallReport, timeout_seconds: float) -> HttpAnswer:
        failed: AttemptError | None = None
        try:
            # Every client's own timeout is per read: a byte each 0.3 s never meets it.
            async with asyncio.timeout(timeout_seconds):
                return await self._transport.exchange(call, report)
        except TimeoutError:
            failed = AttemptError(ErrorCode.PROVIDER_TIMEOUT, f"no whole answer within {timeout_seconds:.1f} s; request {report.dispatch}")
        except TransportFailure as failure:
            failed = AttemptError(failure.code, f"{failure.what}; request {report.dispatch}", retryable=failure.retryable)
        # Outside the handler, so that the error carries nothing of the client's with it, not even as its context.
        raise failed


def _usable(key: Secret) -> bool:
    """Printable ASCII without white space, and not empty. A missing key is an error here, never a reason to look for another."""
    value = key.reveal()
    return bool(value) and all("!" <= character <= "~" for character in value)
