"""What every call of an attempt carries, and what asks for a lease."""

from typing import Any

from runtime_protocol.wire.fields import InstanceId, LockToken, Number, Whole, optional
from runtime_protocol.wire.forms import Dto


def lease_wish() -> Any:
    return optional(Number, most=86_400, help_text="Seconds; clamped to the limits that /health tells. Left out: the server's default.")


class HolderDto(Dto):
    """Who speaks: fields that every call of an attempt carries."""

    runtime_instance_id = InstanceId()
    attempt_no = Whole(least=1, most=2**31 - 1)
    lock_token = LockToken()
