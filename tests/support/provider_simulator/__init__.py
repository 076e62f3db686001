"""A model provider on loopback: a real HTTP server that answers sensibly and, when told to, misbehaves in every way we know of.

    with ProviderSimulator() as simulator:                    # its own thread, an ephemeral port, no latency
        call(simulator.url, ...)                              # "http://127.0.0.1:PORT/v1": /chat/completions, /messages, /models
        simulator.script("some text of the prompt", "status=429 retry-after=2", Behaviour(wire=Wire.DRIP))
        simulator.script(lambda request: request.model == "m", "hang")
        simulator.wait_for(lambda requests: requests and requests[0].closed_by_peer_at, timeout=2)
        simulator.requests                                    # a list of RecordedRequest, oldest first
        simulator.clear()                                     # forgets requests, scripts and counters

    python -m tests.support.provider_simulator --port 8001    # for people, and for tests that need a process of its own

A request with numbered paragraphs in a user message (a line that starts with `[p1] `, up to a blank line or the next marker) gets
facts extracted from them as JSON: plain when the request asks for a JSON format, otherwise behind a sentence and in a fence, as
models do. Any other request gets a sentence of prose. An answer longer than the request's `max_tokens` or `max_completion_tokens`
is cut, with finish_reason `length`.

What to do wrong can be said in three places; the first that has something to say decides:

1. `simulator.script(match, *behaviours)`, or `POST /_control/script` {"match": "text", "behaviours": ["status=500", ...]}. Each
   behaviour serves one request, or `times` of them; then the next one; then normal behaviour.
2. a directive in the prompt, `[[simulate: status=429 retry-after=2 times=1]]`. Several may stand in one prompt. Without `times` a
   directive applies always; with it to the first so many requests with this very prompt, then the next directive's turn comes.
3. the model's name, `simulator-1;delay=3`, with the same keywords and the same meaning of `times`.

`Behaviour` lists every keyword (they are its fields). A directive that cannot be read is answered with a 400 that says why.
The key is judged first: any is right unless it starts with `bad-`.
"""

from tests.support.provider_simulator.behaviours import ALWAYS, Answer, Behaviour, Wire
from tests.support.provider_simulator.records import Outcome, RecordedRequest
from tests.support.provider_simulator.server import ProviderSimulator

__all__ = ["ALWAYS", "Answer", "Behaviour", "Outcome", "ProviderSimulator", "RecordedRequest", "Wire"]
