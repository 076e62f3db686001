"""Writes that several threads make together."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime_jobs.engine.writes import Group

SECONDS = 10


class Held:
    """A write that waits until it is told to go on, and keeps what it was given."""

    def __init__(self, write: Callable[[Sequence[int]], list[int]]) -> None:
        self.write = write
        self.groups: list[list[int]] = []
        self.entered, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.groups.append(list(items))
        self.entered.release()
        assert self.go.acquire(timeout=SECONDS)
        return self.write(items)


def doubled(items: Sequence[int]) -> list[int]:
    return [item * 2 for item in items]


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as pool:
        yield pool


def waiting(group: Group, count: int) -> None:
    deadline = threading.Event()
    for _ in range(SECONDS * 1_000):
        if len(group._waiting) == count:
            return
        deadline.wait(0.001)
    raise AssertionError(f"{len(group._waiting)} wait, not {count}")


def test_who_comes_while_a_write_is_under_way_goes_with_the_next_and_each_gets_its_own_answer(pool):
    held = Held(doubled)
    group = Group(held)
    first = pool.submit(group.write, 1)
    assert held.entered.acquire(timeout=SECONDS)
    others = [pool.submit(group.write, number) for number in range(2, 12)]
    waiting(group, 10)

    held.go.release(2)

    assert first.result(SECONDS) == 2
    assert [other.result(SECONDS) for other in others] == [number * 2 for number in range(2, 12)]
    assert held.groups[0] == [1]
    assert sorted(held.groups[1]) == list(range(2, 12))


def test_nobody_waits_for_company(pool):
    group = Group(doubled)
    assert [pool.submit(group.write, number).result(SECONDS) for number in range(5)] == [0, 2, 4, 6, 8]


def test_a_group_has_a_limit_and_the_rest_goes_next(pool):
    held = Held(doubled)
    group = Group(held)
    futures = [pool.submit(group.write, 0)]
    assert held.entered.acquire(timeout=SECONDS)
    futures += [pool.submit(group.write, number) for number in range(1, 61)]
    waiting(group, 60)

    held.go.release(3)

    assert sorted(future.result(SECONDS) for future in futures) == [number * 2 for number in range(61)]
    assert [len(items) for items in held.groups] == [1, 50, 10]


def test_one_bad_item_fails_alone(pool):
    def strict(items: Sequence[int]) -> list[int]:
        if 13 in items:
            raise ValueError("thirteen")
        return doubled(items)

    held = Held(strict)
    group = Group(held)
    first = pool.submit(group.write, 1)
    assert held.entered.acquire(timeout=SECONDS)
    futures = {number: pool.submit(group.write, number) for number in (12, 13, 14)}
    waiting(group, 3)

    held.go.release(10)

    assert first.result(SECONDS) == 2
    assert futures[12].result(SECONDS) == 24
    assert futures[14].result(SECONDS) == 28
    with pytest.raises(ValueError, match="thirteen"):
        futures[13].result(SECONDS)
    assert group.write(3) == 6


def test_a_failure_of_one_alone_reaches_it_and_frees_the_lead():
    def broken(items: Sequence[int]) -> list[int]:
        raise ValueError(items[0])

    group = Group(broken)
    for number in (1, 2):
        with pytest.raises(ValueError, match=str(number)):
            group.write(number)
