"""The protocol over HTTP: what may be repeated is repeated, with jitter, for as long as the caller's patience lasts."""

import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2

PROTOCOL_VERSION = "1.0"
SLOWEST_SECONDS = 30.0
# Only a person can mend these: there is no use in asking often.
TOKEN_TROUBLE = {"token_missing", "token_invalid", "token_expired", "token_revoked", "scope_denied", "instance_not_allowed"}

logger = logging.getLogger("reference_runtime")


class Refused(Exception):
    """The server answered with a failure that repeating does not mend."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status} {body['errorCode']}")
        self.status, self.code, self.body = status, str(body["errorCode"]), body


class NoAnswer(Exception):
    """Nobody answered for as long as it was worth to wait."""


class Server:
    """One connection pool. `token` is asked for at each try, so that a new one is taken at once."""

    def __init__(self, base_url: str, token: Callable[[], str], *, timeout: float) -> None:
        self._token = token
        self._hurried, self._until = threading.Event(), math.inf
        self._client = httpx2.Client(
            base_url=f"{base_url}/internal/runtime/",
            headers={"X-Protocol-Version": PROTOCOL_VERSION},
            timeout=httpx2.Timeout(timeout, connect=5),
            trust_env=False,
        )

    def hurry(self, seconds: float) -> None:
        """From now on, and for so long, nothing has more patience than this: the runtime is to end."""
        self._until = time.monotonic() + seconds
        self._hurried.set()

    def close(self) -> None:
        self._client.close()

    def post(self, path: str, body: dict[str, Any], *, patience: float = 30, keep_asking: bool = False) -> dict[str, Any]:
        """`patience` in seconds. With `keep_asking` a refused token is not the end: an operator may give another one meanwhile.

        Raises Refused, NoAnswer.
        """
        return self._call("POST", path, patience, keep_asking, json=body)

    def get(self, path: str, headers: dict[str, str], *, patience: float = 30) -> dict[str, Any]:
        return self._call("GET", path, patience, False, headers=headers)

    def _call(self, method: str, path: str, patience: float, keep_asking: bool, **request: Any) -> dict[str, Any]:
        deadline, tries = time.monotonic() + patience, 0
        while True:
            tries += 1
            # The jitter spreads a herd.
            wait, reason = min(SLOWEST_SECONDS, 0.2 * 2**tries) * random.uniform(0.5, 1), "network"
            try:
                status, body, retry_after = self._send(method, path, **request)
                if body is not None and status == 200:
                    return body
                if body is not None and "errorCode" in body:
                    reason = body["errorCode"]
                    if not body["retryable"] and not (keep_asking and reason in TOKEN_TROUBLE):
                        raise Refused(status, body)
                    wait = max(wait, retry_after)
            except (httpx2.TransportError, json.JSONDecodeError) as error:
                reason = type(error).__name__
            if time.monotonic() + wait > min(deadline, self._until):
                raise NoAnswer(f"{path.split('/')[-1]}: no answer within {patience:g} s ({reason})")
            logger.info("again in %.1f s: %s", wait, reason)
            self._pause(wait)

    def _send(self, method: str, path: str, **request: Any) -> tuple[int, dict[str, Any] | None, float]:
        """Status, body and Retry-After. A proxy's page is no answer of the server, whatever its status says: its body is None."""
        headers = {**request.pop("headers", {}), "Authorization": f"Bearer {self._token()}"}
        response = self._client.request(method, path, headers=headers, **request)
        body = response.json() if "json" in response.headers.get("content-type", "") else None
        return response.status_code, body if isinstance(body, dict) else None, float(response.headers.get("Retry-After", 0))

    def _pause(self, seconds: float) -> None:
        if self._hurried.is_set():
            time.sleep(seconds)
        else:
            self._hurried.wait(seconds)
