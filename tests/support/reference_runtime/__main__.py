"""The command."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.reference_runtime.runtime import ReferenceRuntime
from tests.support.reference_runtime.spool import Spool


def token_source(file: Path | None) -> Callable[[], str]:
    """From the file whenever it is needed, so that an operator can put a new one there; else from the environment."""
    if file is not None:
        return lambda: file.read_text(encoding="utf-8").strip()
    token = os.environ.get("RUNTIME_TOKEN", "")
    return lambda: token


def main() -> int:
    parser = argparse.ArgumentParser(prog="reference_runtime", description="A runtime for synthetic.extract_facts_runtime.")
    parser.add_argument("--base-url", required=True, help="such as http://127.0.0.1:8000")
    parser.add_argument("--token-file", type=Path, help="a file that holds a service token; without it: RUNTIME_TOKEN in the environment")
    parser.add_argument("--spool", type=Path, required=True, help="a folder of this runtime alone, for results that wait to be delivered")
    parser.add_argument("--instance", help="its runtimeInstanceId; default: from host and process")
    parser.add_argument("--slots", type=int, default=2, help="jobs at once (default: %(default)s)")
    parser.add_argument("--lease", type=float, default=30, help="seconds (default: %(default)s)")
    chosen = parser.parse_args()
    token = token_source(chosen.token_file)
    if not token():
        parser.error("A token is needed: RUNTIME_TOKEN or --token-file. Make one: python manage.py issue_service_token NAME")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    runtime = ReferenceRuntime(
        chosen.base_url.rstrip("/"), token, Spool(chosen.spool), instance=chosen.instance, slots=chosen.slots, lease_seconds=chosen.lease
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: runtime.stop())
    runtime.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
