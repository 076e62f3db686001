"""`python -m tests.conformance`: see the package."""

import argparse
import os
import sys
from functools import partial

from tests.conformance import of_runtime, of_server
from tests.conformance.calls import JOB_TYPE
from tests.conformance.scenarios import table
from tests.conformance.server import CANCEL_JOB, CREATE_JOB, Server, by_command
from tests.conformance.stage import stage

REFERENCE = f"{sys.executable} -m tests.support.reference_runtime --base-url {{base_url}} --instance {{instance}} --spool {{spool}}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="Does a server, or a runtime, do what runtime_protocol/PROTOCOL.md says? Prints a table; exit code 0 when all passed.",
    )
    parser.add_argument("--base-url", help="the server to test, such as http://127.0.0.1:8000; nobody else may take its jobs meanwhile")
    parser.add_argument(
        "--token", default=os.environ.get("RUNTIME_TOKEN", ""), help="its service token, all scopes; default: RUNTIME_TOKEN"
    )
    parser.add_argument(
        "--create-job",
        default=CREATE_JOB,
        help=f"a command that makes a job of type {JOB_TYPE} on it (default: %(default)s)",
    )
    parser.add_argument("--cancel-job", default=CANCEL_JOB, help="a command that cancels job {job_id} (default: %(default)s)")
    parser.add_argument(
        "--runtime",
        help="the runtime to test: a command that may hold {base_url}, {token}, {token_file}, {instance} (another with each start) and "
        "{spool} (the same folder with each start of a scenario). RUNTIME_TOKEN is in its environment. It gets jobs of type "
        f"{JOB_TYPE} and a provider that speaks OpenAI's chat completions. `reference` is the one in Python here.",
    )
    parser.add_argument("--only", action="append", default=[], metavar="NUMBER", help="only this scenario; may be given several times")
    parser.add_argument("--at-once", type=int, default=4, help="scenarios of a runtime at once (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if bool(chosen.base_url) == bool(chosen.runtime):
        parser.error("Say what to test: --base-url and --token for a server, or --runtime for a runtime.")
    if chosen.base_url and not chosen.token:
        parser.error("A server's test needs --token, or RUNTIME_TOKEN. Make one: python manage.py issue_service_token NAME")

    if chosen.runtime:
        command = REFERENCE if chosen.runtime == "reference" else chosen.runtime
        outcomes = of_runtime.suite.run(partial(stage, command), only=chosen.only, at_once=chosen.at_once)
    else:
        server = Server(chosen.base_url, chosen.token, create_job=by_command(chosen.create_job), cancel_job=by_command(chosen.cancel_job))
        outcomes = of_server.suite.run(server.context, only=chosen.only)
    print(table(outcomes))
    if not outcomes:
        parser.error(f"There is no scenario {', '.join(chosen.only)}.")
    return int(any(one.verdict == "FAIL" for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
