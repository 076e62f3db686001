"""One event loop per process, in a thread of its own, for all provider calls of that process.

A loop per call (asyncio.run) waits at its end for the threads of hanging name look-ups. One that stays does not. It does not
survive a fork, so it is made when it is first needed, and again in a child.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from runtime_jobs.abort import Aborted, AbortReason, AbortSignal
from runtime_jobs.errors import AttemptError, ErrorCode

T = TypeVar("T")

# How long a cancelled call may take to close its socket before its caller goes on without it.
_GRACE_SECONDS = 2.0


class LoopThread:
    """An event loop that runs in a daemon thread until `close()`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.closing = False
        self._thread = threading.Thread(target=self._work, name="gateway-loop", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def close(self, timeout_seconds: float) -> None:
        """Cancel what runs, let it close its sockets, end the thread. Calls that are waited for raise Aborted(shutdown)."""
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self.loop).result(timeout_seconds)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            self.loop.close()

    async def _cancel_all(self) -> None:
        self.closing = True
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_asyncgens()


_lock = threading.Lock()
_current: LoopThread | None = None
# Loops of the process that this one was forked from. Kept, never closed: the selector is shared with the parent, whose
# registrations closing would undo.
_inherited: list[LoopThread] = []


def _forget_after_fork() -> None:
    global _lock, _current
    # Another thread of the parent may have held the lock at the moment of the fork.
    _lock = threading.Lock()
    if _current is not None:
        _inherited.append(_current)
        _current = None


os.register_at_fork(after_in_child=_forget_after_fork)


def _loop() -> LoopThread:
    global _current
    with _lock:
        if _current is None:
            _current = LoopThread()
        return _current


def shutdown(timeout_seconds: float = _GRACE_SECONDS) -> None:
    """End the loop of this process, if there is one. A later `run` makes a new one. Registered to happen at exit."""
    global _current
    with _lock:
        ending, _current = _current, None
    if ending is not None:
        ending.close(timeout_seconds)


atexit.register(shutdown)


def run(coroutine: Coroutine[Any, Any, T], signal: AbortSignal) -> T:
    """Run a coroutine on the loop and wait for it in this thread; what it raises is raised here.

    When the signal is pulled the coroutine is cancelled at once (its socket closes within milliseconds) and waited for, so that
    what it reports is final. Then Aborted(reason) is raised; for a deadline that has passed AttemptError(provider_timeout). An
    answer that was complete by then is dropped, unless it is only the deadline that came in between.
    """
    if signal.reason is not None:
        coroutine.close()
        raise _ending(signal.reason)
    call = _Call(coroutine, _loop())
    signal.on_abort(lambda _reason: call.cancel())
    try:
        while not call.over and signal.reason is None:  # reading the reason pulls the signal when the deadline has passed
            call.wait_for_news(signal.remaining_seconds())
        call.wait(_GRACE_SECONDS)
    except BaseException:  # this thread is interrupted: the call must not go on without it
        call.cancel()
        raise
    task = call.finished_task
    if task is not None and signal.reason in (None, AbortReason.TIMEOUT):
        return task.result()
    raise _ending(signal.reason or AbortReason.SHUTDOWN)


def _ending(reason: AbortReason) -> Exception:
    if reason is AbortReason.TIMEOUT:
        return AttemptError(ErrorCode.PROVIDER_TIMEOUT, "the attempt's deadline passed during the call")
    return Aborted(reason)


class _Call(Generic[T]):
    """A coroutine on the loop, seen from a thread. It is over when its task is, not when the task was told to stop.

    `run_coroutine_threadsafe` would not do: its future is cancelled the moment that it is told to, with the socket still open.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], thread: LoopThread) -> None:
        self._coroutine = coroutine
        self._thread = thread
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False
        self._over = threading.Event()
        self._news = threading.Event()
        try:
            thread.loop.call_soon_threadsafe(self._start)
        except RuntimeError:  # the loop has just been closed
            self._refuse()

    def _start(self) -> None:
        if self._thread.closing or self._cancelled:
            self._refuse()
            return
        self._task = self._thread.loop.create_task(self._coroutine)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[T]") -> None:
        if not task.cancelled():
            task.exception()  # looked at, else asyncio logs it when the caller has gone on without it
        self._end()

    def _refuse(self) -> None:
        self._coroutine.close()
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._news.set()

    def cancel(self) -> None:
        """Tell the task to stop; from any thread, any number of times."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the task is over
            self._thread.loop.call_soon_threadsafe(self._cancel)
        self._news.set()

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def wait_for_news(self, seconds: float) -> None:
        """Return when the task is over or was told to stop, or when the time is up."""
        self._news.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Return when the task is over or the time is up."""
        self._over.wait(seconds)

    @property
    def over(self) -> bool:
        return self._over.is_set()

    @property
    def finished_task(self) -> "asyncio.Task[T] | None":
        """The task once it is over with a result or an exception of its own."""
        task = self._task
        return task if task is not None and self.over and not task.cancelled() else None
