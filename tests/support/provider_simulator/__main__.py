"""`python -m tests.support.provider_simulator`: the simulator as a process of its own, until SIGTERM or Ctrl-C."""

import argparse
import asyncio
import errno
import signal
import sys

from tests.support.provider_simulator.server import ProviderSimulator


def main() -> int:
    parser = argparse.ArgumentParser(prog="provider_simulator", description="A model provider on loopback, for people and tests.")
    parser.add_argument("--port", type=int, default=8001, help="0 takes any free one (default: %(default)s)")
    parser.add_argument("--latency", type=float, default=0.6, help="seconds between request and answer (default: %(default)s)")
    chosen = parser.parse_args()
    if not 0 <= chosen.port <= 65535 or not 0 <= chosen.latency < 3600:
        parser.error("--port is between 0 and 65535, --latency between 0 and 3600 seconds.")

    simulator = ProviderSimulator(chosen.port, latency=chosen.latency, access_log=lambda line: print(line, flush=True))
    try:
        asyncio.run(_serve(simulator))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        print(f"Port {chosen.port} is in use: stop the other program, or choose another port with --port.", file=sys.stderr)
        return 2
    return 0


async def _serve(simulator: ProviderSimulator) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, simulator.stop)
    await simulator.serve(lambda: print(f"The provider simulator answers at {simulator.url} after {simulator.latency} s.", flush=True))


if __name__ == "__main__":
    sys.exit(main())
