"""The way to model providers.

    service = AiGatewayService(user_addresses=AddressPolicy(), platform_addresses=AddressPolicy(allow_private=True))
    answer = run(service.complete(target, request, report, call_id=..., timeout_seconds=...), signal)

It knows no settings and no tables: what it needs is passed in, and what a call was like comes back in its CallReport.
"""

from runtime_jobs.gateway.addresses import AddressPolicy, AddressRefused
from runtime_jobs.gateway.loop import run, shutdown
from runtime_jobs.gateway.quiet import quiet_client_loggers
from runtime_jobs.gateway.service import AiGatewayService

__all__ = ["AddressPolicy", "AddressRefused", "AiGatewayService", "quiet_client_loggers", "run", "shutdown"]
