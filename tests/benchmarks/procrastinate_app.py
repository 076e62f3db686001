"""What procrastinate executes, and its worker: `python -m tests.benchmarks.procrastinate_app CONCURRENCY`."""

import asyncio
import os
import sys

import django
import procrastinate

from tests.benchmarks.app import work

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"], min_size=4, max_size=10),
)


# Coroutines where they do, as its documentation advises: a plain function costs a thread each time.
@app.task
async def noop() -> None:
    pass


@app.task
async def stamp(key: str) -> None:
    work.stamp(key)


@app.task
def rows(key: str) -> None:
    from django.db import transaction

    with transaction.atomic():
        work.write_rows(key)


async def serve(concurrency: int) -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency)


if __name__ == "__main__":
    django.setup()
    # The module that runs is not the one that tasks are named after.
    from tests.benchmarks import procrastinate_app

    asyncio.run(procrastinate_app.serve(int(sys.argv[1])))
