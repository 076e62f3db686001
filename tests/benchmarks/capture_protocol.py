"""Records what the protocol's endpoints say to PostgreSQL in one full cycle: for pgbench, and for a plain view that says the same."""

import json
import pickle
import time
from typing import Any
from uuid import UUID

from tests.benchmarks.capture import Recorder, Script
from tests.benchmarks.protocol_calls import CYCLE, INSTANCE


def capture_protocol(token: str, file: str) -> dict[str, Any]:
    """The pgbench script, and how many statements and transactions it has. What the plain view needs is pickled into `file`."""
    from django.conf import settings
    from django.test import Client

    from runtime_jobs.models.base import new_id
    from runtime_jobs.redaction import Secret
    from runtime_jobs.services.tokens import token_hash
    from runtime_protocol import presence

    # In a server each runtime is noted once, and from then on all together.
    presence.polled = lambda _: False  # type: ignore[assignment]
    settings.ALLOWED_HOSTS = ["testserver"]
    client = Client(headers={"Authorization": f"Bearer {token}"})

    def call(made: Any, lease: dict[str, Any]) -> Any:
        body = made.body(lease)
        path, data = f"/internal/runtime/{made.path(lease)}", "" if body is None else json.dumps(body)
        answer = client.generic(made.method, path, data, content_type="application/json", secure=True, headers=made.headers(lease))
        if answer.status_code != 200:
            raise RuntimeError(f"{made.name}: {answer.status_code} {answer.content.decode()}")
        return json.loads(answer.content)

    def cycle(note: Any = lambda *_: None) -> dict[str, Any]:
        lease: dict[str, Any] = {"lockedBy": INSTANCE, "requestId": new_id()}
        for made in CYCLE:
            note(made.name)
            answer = call(made, lease)
            if made.name == "poll":
                lease |= answer["jobs"][0]["lease"]
            note(made.name, answer)
        return lease

    for _ in range(3):
        cycle()  # some things are looked up once in a process's life
    since = time.time()
    time.sleep(0.01)
    parts: dict[str, list[Any]] = {}
    answers: dict[str, Any] = {}
    with Recorder() as recorder:

        def note(name: str, answer: Any = None) -> None:
            if answer is None:
                parts[name] = [len(recorder.said), 0]
            else:
                parts[name][1], answers[name] = len(recorder.said), answer

        lease = cycle(note)
    held = (UUID(lease["jobId"]), token_hash(Secret(lease["lockToken"])))
    said = {
        name: [(one.text, one.query, one.params, one.is_prepared) for one in recorder.said[slice(*span)]] for name, span in parts.items()
    }
    with open(file, "wb") as opened:
        pickle.dump({"said": said, "answers": answers, "job_id": held[0], "hash": held[1], "since": since}, opened)
    script = Script(recorder, [held], since).text()
    return {"script": script, "statements": len(recorder.said), "transactions": recorder.transactions}
