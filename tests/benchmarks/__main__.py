"""`python -m tests.benchmarks`: run the measures that are named (default: all) and print one table."""

import argparse
import signal
import sys

from tests.benchmarks import admin, ceiling, drain, inflight, pickup, protocol
from tests.benchmarks.report import Report
from tests.benchmarks.running import allow_many_files, end_all
from tests.benchmarks.server import throw_away_server
from tests.benchmarks.sizes import FULL, QUICK, SMOKE

# The ceiling comes after the drain, which it is compared with.
MEASURES = {
    "pickup": pickup.measure,
    "drain": drain.measure,
    "ceiling": ceiling.measure,
    "inflight": inflight.measure,
    "admin": admin.measure,
    "protocol": protocol.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure the engine beside its peers.")
    parser.add_argument("measures", nargs="*", metavar="measure", help=f"any of: {', '.join(MEASURES)} (default: all)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const=QUICK, help="a few minutes instead of an hour")
    size.add_argument("--smoke", dest="size", action="store_const", const=SMOKE, help="seconds: whether it runs at all")
    parser.set_defaults(size=FULL)
    chosen = parser.parse_args()
    if unknown := set(chosen.measures) - set(MEASURES):
        parser.error(f"unknown measure {', '.join(sorted(unknown))}; known are {', '.join(MEASURES)}")

    # Both: a shell starts what it runs in the background with SIGINT ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    allow_many_files()
    report = Report()
    try:
        with throw_away_server() as server:
            report.notes.append(server.describe())
            for name, measure in MEASURES.items():
                if not chosen.measures or name in chosen.measures:
                    measure(server, chosen.size, report)
    except KeyboardInterrupt:
        print("\nstopped; what was measured until then:", file=sys.stderr)
        return 130
    finally:
        end_all()
        print(report.table())
    return 0


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
