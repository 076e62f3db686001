"""`make run`: the whole system on one developer's machine, under one process manager, until Ctrl-C."""

import contextlib
import fcntl
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import honcho.manager
import psutil

from config import env
from config.embedded import start_or_join

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = env.folder("DATA_DIR", BASE_DIR / ".data")
PORT = env.whole("PORT", 8000, least=1, most=65_535)
PROVIDER_PORT = env.whole("PROVIDER_PORT", 8001, least=1, most=65_535)
# Who answers: the simulator, or a real model (tests/support/local_model.py).
PROVIDER = env.choice("PROVIDER", "simulator", ("simulator", "local-model"))
# Who takes jobs of lane runtime: the reference runtime, or one of yours, which you start.
RUNTIME = env.choice("RUNTIME", "reference", ("reference", "own"))
RUNTIME_JOB_TYPE = "synthetic.extract_facts_runtime"
LOCAL_MODEL = {"DEFAULT_MODEL_PROVIDER": "llama.cpp", "DEFAULT_MODEL_NAME": "gemma-3-270m"}

# Every process of a stack carries it: so a later run finds what a killed one left behind.
STACK_MARK = "AI_JOBS_STACK"
_READY_SECONDS = 60
# The engine's own drain (2 s here) and release fit into it.
honcho.manager.KILL_WAIT = 15


def main() -> int:
    if sys.argv[1:] == ["guide"]:
        return guide()
    if PROVIDER == "local-model":
        use_local_model()
    with only_one_run():
        end_leftovers()
        for name, port in (("PORT", PORT), ("PROVIDER_PORT", PROVIDER_PORT)):
            refuse_busy_port(name, port)
        with database():
            return run_stack()


@contextlib.contextmanager
def only_one_run() -> Iterator[None]:
    """Hold the data folder for this run. A killed run holds nothing: the kernel lets go of its lock."""
    DATA_DIR.mkdir(parents=True, exist_ok=True)
    with (DATA_DIR / "run.lock").open("a+") as file:
        try:
            # A lock of the process, not of the open file: the process manager forks, and its children must not keep it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            stop(f"`make run` is running already here (process {_read(file)}). Stop it there with Ctrl-C first.")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "unknown"


def use_local_model() -> None:
    """Make it the whole stack's model."""
    if not find_spec("xllamacpp"):
        stop("The local model is not installed. Start with: make run PROVIDER=local-model")
    os.environ.update(LOCAL_MODEL, PROVIDER_KEY="sk-local-model-demo-key")
    # It runs on the processor, a job after the other: who waits for it in the queue uses up no time-out.
    os.environ.setdefault("ENGINE_CONCURRENCY", "1")


def stop(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.exit(2)


def end_leftovers() -> None:
    """Kill what an earlier run left when it was itself killed."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(STACK_MARK) == str(DATA_DIR):
                left.append(process)
                process.kill()
    psutil.wait_procs(left, timeout=10)
    if left:
        say(f"ended {len(left)} processes of an earlier run that was killed")


def refuse_busy_port(name: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            stop(f"Port {port} is in use. Choose another: make run {name}={port + 80}")


@contextlib.contextmanager
def database() -> Iterator[None]:
    """Yours when DATABASE_URL names it, else the embedded one, which ends with us."""
    os.environ.setdefault("DEBUG", "1")
    if env.text("DATABASE_URL"):
        yield
        return
    server = start_or_join(DATA_DIR / "postgres", stop_with_last_user=False)
    os.environ["DATABASE_URL"] = server.get_uri()
    try:
        yield
    finally:
        server.stop()


def run_stack() -> int:
    os.environ[STACK_MARK] = str(DATA_DIR)
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.environ.setdefault("ENGINE_WORKERS", "1")
    os.environ.setdefault("ENGINE_DRAIN_SECONDS", "2")
    for command in (("migrate", "--verbosity", "0"), ("make_demo_data",)):
        status = subprocess.call([sys.executable, "manage.py", *command], cwd=BASE_DIR)
        if status:
            return status
    manager = honcho.manager.Manager()
    with service_token() as token:
        for name, command_line, more in processes(token):
            manager.add_process(name, f"exec {shlex.join(command_line)}", env={**os.environ, **more}, cwd=str(BASE_DIR))
        manager.loop()
    # Ctrl-C is how it is meant to end.
    return 0 if manager.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM) else int(manager.returncode or 0)


@contextlib.contextmanager
def service_token() -> Iterator[str]:
    """What the runtime of this run speaks with: in no file, in no log, revoked at the end. That of a killed run expires in a day."""
    manage = [sys.executable, "manage.py"]
    made = subprocess.run(
        [*manage, "issue_service_token", "make run", "--days", "1", "--job-types", RUNTIME_JOB_TYPE, "--instances", "reference-.*"],
        cwd=BASE_DIR, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    token = made.stdout.strip()
    try:
        yield token
    finally:
        subprocess.call([*manage, "revoke_service_token", token.split("_")[1]], cwd=BASE_DIR, stdout=subprocess.DEVNULL)


def processes(token: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    python = sys.executable
    if PROVIDER == "local-model":
        folder = str(DATA_DIR / "models")
        yield "provider", [python, "-m", "tests.support.local_model", "--port", str(PROVIDER_PORT), "--folder", folder], {}
    else:
        yield "provider", [python, "-m", "tests.support.provider_simulator", "--port", str(PROVIDER_PORT)], {}
    granian = [
        python,
        "-m",
        "granian",
        "--interface",
        "wsgi",
        "--host",
        "127.0.0.1",
        "--port",
        str(PORT),
    ]
    # By the environment, so that the long polls know how many there are.
    yield "web", [*granian, "--log-level", "warning", "config.wsgi:application"], {"GRANIAN_BLOCKING_THREADS": "16"}
    for lane in ("interactive", "background"):
        yield lane, [python, "manage.py", "run_engine"], {"Q_CLUSTER_NAME": lane}
    if RUNTIME == "reference":
        runtime = [python, "-m", "tests.support.reference_runtime", "--base-url", f"http://127.0.0.1:{PORT}"]
        # Its name stays the same from run to run, and so does what its spool holds.
        yield "runtime", [*runtime, "--instance", "reference-1", "--spool", str(DATA_DIR / "runtime-spool")], {"RUNTIME_TOKEN": token}
    yield "guide", [python, "-m", "config.devstack", "guide"], {}


def guide() -> int:
    """Show a first job from its creation to its result, then say where to look; stays until it is stopped."""
    if not wait_until_ready(PORT, "/healthz"):
        say(f"the web server did not answer on port {PORT} within {_READY_SECONDS} s; its lines above say why")
        return 1
    own_model = ""
    if PROVIDER == "local-model":
        own_model = "".join(f"{name}={value} " for name, value in LOCAL_MODEL.items())
        if not wait_until_ready(PROVIDER_PORT, "/health"):
            say(f"the model did not answer on port {PROVIDER_PORT} within {_READY_SECONDS} s; its lines above say why")
            return 1
    say("a first job, from a text of ours:")
    text = BASE_DIR / "runtime_jobs" / "synthetic" / "demo.txt"
    create = [sys.executable, "manage.py", "create_job", "synthetic.extract_facts"]
    key = "demo:first" if PROVIDER == "simulator" else f"demo:first:{PROVIDER}"
    status = subprocess.call([*create, "--file", str(text), "--key", key, "--wait"], cwd=BASE_DIR)
    if status:
        return status
    say("")
    say(f"admin:  http://127.0.0.1:{PORT}/admin/   login: admin   password: admin")
    say("another job, from a text of yours, in a second terminal:")
    say(f"        {own_model}{VENV_PYTHON} manage.py create_job synthetic.extract_facts --file README.md --wait")
    say("a job for the external runtime that runs beside the engine:" if RUNTIME == "reference" else "a job for your runtime:")
    say(f"        {own_model}{VENV_PYTHON} manage.py create_job {RUNTIME_JOB_TYPE} --file README.md --wait")
    say("Ctrl-C stops everything; the data stays in .data/ for the next `make run`")
    signal.pause()
    return 0


VENV_PYTHON = os.path.relpath(sys.executable, BASE_DIR) if sys.executable.startswith(str(BASE_DIR)) else sys.executable


def wait_until_ready(port: int, path: str) -> bool:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(
            f"http://127.0.0.1:{port}{path}", timeout=5
        ):  # fmt: skip
            return True
        time.sleep(0.1)
    return False


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
