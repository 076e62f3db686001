"""How much is measured. Smoke is for the test: it proves that everything runs, and no figure of it means anything."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    rounds: int
    pickup: tuple[tuple[float, int], ...]  # arrivals per second, jobs a round
    drain_jobs: int
    slow_drain_jobs: int  # for django-q2 with kept results, which takes ten times as long
    ceiling_jobs: int
    inflight: tuple[int, ...]
    inflight_rounds: int
    call_seconds: float
    admin_jobs: tuple[int, int]
    admin_requests: int  # of each page in a round
    protocol_jobs: int
    protocol_runtimes: tuple[int, ...]
    protocol_seconds: float
    protocol_calls: int


FULL = Size(
    rounds=5,
    pickup=((5, 400), (100, 1_000)),
    drain_jobs=20_000,
    slow_drain_jobs=2_000,
    ceiling_jobs=20_000,
    inflight=(500, 2_000),
    inflight_rounds=3,
    call_seconds=10,
    admin_jobs=(1_000, 1_000_000),
    admin_requests=20,
    protocol_jobs=40_000,
    protocol_runtimes=(1, 8, 32),
    protocol_seconds=10,
    protocol_calls=1_000,
)
QUICK = Size(
    rounds=2,
    pickup=((5, 100), (100, 500)),
    drain_jobs=2_000,
    slow_drain_jobs=500,
    ceiling_jobs=4_000,
    inflight=(500, 2_000),
    inflight_rounds=1,
    call_seconds=10,
    admin_jobs=(1_000, 1_000_000),
    admin_requests=10,
    protocol_jobs=10_000,
    protocol_runtimes=(1, 8, 32),
    protocol_seconds=3,
    protocol_calls=300,
)
SMOKE = Size(
    rounds=1,
    pickup=((50, 10),),
    drain_jobs=60,
    slow_drain_jobs=20,
    ceiling_jobs=128,
    inflight=(20,),
    inflight_rounds=1,
    call_seconds=0.5,
    admin_jobs=(1_000, 2_000),
    admin_requests=1,
    protocol_jobs=4_000,
    protocol_runtimes=(2,),
    protocol_seconds=0.5,
    protocol_calls=10,
)
