"""Resolving host names in threads of their own, with a deadline: getaddrinfo may hang for half a minute, uncancellable."""

import asyncio
import ipaddress
import os
import socket
import threading
from concurrent.futures import Future

from runtime_jobs.gateway.addresses import IpAddress


class NameUnresolved(Exception):
    """The host has no address, or the resolver could not be asked."""


class NameTimeout(Exception):
    """The resolver did not answer in time."""


# Look-ups that are under way, by process, host and port. Joined, not repeated: a hundred calls of one host whose resolver hangs
# cost one thread. The process is part of the key since a fork copies the entry but not the thread.
_pending: dict[tuple[int, str, int], "Future[list[IpAddress]]"] = {}


async def resolve(host: str, port: int, *, timeout_seconds: float) -> list[IpAddress]:
    """The addresses of a host, in the resolver's order. Raises NameUnresolved or NameTimeout.

    The threads are daemons: those of asyncio's own executor are few (six on two cores, so a dead resolver stops everybody) and
    are waited for at the end of the process.
    """
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    try:
        async with asyncio.timeout(timeout_seconds):
            return await asyncio.wrap_future(_look_up(host, port))
    except TimeoutError:
        timed_out = True
    except OSError:
        timed_out = False
    raise NameTimeout if timed_out else NameUnresolved


def _look_up(host: str, port: int) -> "Future[list[IpAddress]]":
    key = (os.getpid(), host, port)
    future = _pending.get(key)
    if future is None:
        future = Future()
        # From now on a waiter that gives up cannot cancel it for the others.
        future.set_running_or_notify_cancel()
        _pending[key] = future
        threading.Thread(target=_ask, args=(key, future), name="gateway-dns", daemon=True).start()
    return future


def _ask(key: tuple[int, str, int], future: "Future[list[IpAddress]]") -> None:
    _, host, port = key
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # A link-local address comes with its interface, "fe80::1%2".
        addresses = [ipaddress.ip_address(str(entry[4][0])) for entry in found]
    except (OSError, UnicodeError, ValueError):
        addresses = []
    finally:
        _pending.pop(key, None)
    if addresses:
        future.set_result(list(dict.fromkeys(addresses)))
    else:
        future.set_exception(OSError("no address"))
