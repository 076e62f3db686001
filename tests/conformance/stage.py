"""Everything around one runtime under test: a scripted server, a proxy with faults in front of it, a provider."""

import base64
import contextlib
import tempfile
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.plane import Job, Plane
from tests.conformance.program import Program
from tests.conformance.provider import Provider
from tests.conformance.proxy import FaultProxy
from tests.conformance.scenarios import check, wait_for

API_KEY = "sk-canary+key/of=the?provider&0123456789"
TOKEN = "rt_conformance_canary-of-the-service-token"
# How long a program may take to start, and to do what it does at once.
SOON = 15.0


@dataclass
class Stage:
    """The parts, and what scenarios do with them."""

    plane: Plane
    proxy: FaultProxy
    provider: Provider
    program: Program

    def done(self, job: Job, seconds: float = 30) -> None:
        wait_for(lambda: job.status == "succeeded", seconds, "the job has succeeded")

    def working(self, job: Job) -> float:
        """Start the runtime on a job whose model call does not end; when that began."""
        self.provider.hold.set()
        self.program.start()
        wait_for(lambda: self.provider.calls, SOON, "the model is called")
        return self.provider.calls[0].at

    def aborted(self, seconds: float) -> float:
        """When the model call was aborted."""
        return wait_for(lambda: self.provider.calls[0].gone_at, seconds, "the model call is aborted")

    def sent(self, job: Job) -> list[str]:
        return [call.verb for call in self.plane.seen("result", "fail", "release", job=job)]


@contextlib.contextmanager
def stage(command: str) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        plane = Plane(api_key=API_KEY, token=TOKEN)
        stack.callback(plane.close)
        proxy = FaultProxy(plane.url)
        stack.callback(proxy.close)
        provider = Provider()
        stack.callback(provider.close)
        plane.provider_url = provider.url
        program = Program(command, proxy.url, TOKEN, folder)
        stack.callback(program.close)
        try:
            yield Stage(plane, proxy, provider, program)
            # S48, in every scenario: whatever happens, no secret is printed.
            printed = program.printed()
            check(not (found := leaks(printed, plane.lock_tokens)), f"S48: it printed a secret: {', '.join(found)}")
        except AssertionError as error:
            last = " | ".join(program.printed().splitlines()[-3:])
            raise AssertionError(f"{error} — last lines: {last[-600:]}") from None


def leaks(text: str, lock_tokens: list[str]) -> list[str]:
    """Which secrets stand in the text, as they are, in base64 or as part of a URL."""
    secrets = {"the API key": API_KEY, "the service token": TOKEN, **{f"lockToken {n}": one for n, one in enumerate(lock_tokens)}}
    found = []
    for name, secret in secrets.items():
        forms = {secret, urllib.parse.quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("=")}
        if any(form in text for form in forms):
            found.append(name)
    return found
