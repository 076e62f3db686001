"""The Rust crate's example, for tests that run it: built under cargo's own lock. Without cargo they are skipped; REQUIRE_ALL fails."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CRATE = Path(__file__).resolve().parent.parent.parent / "runtime_protocol" / "rust"


def cargo() -> str | None:
    """A cargo that is new enough for the crate."""
    program = shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo" / "bin")
    if program is None:
        return None
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    is_1, least = re.search(r"cargo 1\.(\d+)", version), re.search(r'rust-version = "1\.(\d+)"', (CRATE / "Cargo.toml").read_text())
    return program if is_1 and least and int(is_1[1]) >= int(least[1]) else None


@functools.cache
def example(name: str = "extract_facts") -> str:
    """The example's program."""
    program = cargo()
    if program is None:
        message = "cargo is not installed, or too old: the Rust client is NOT TESTED"
        if os.environ.get("REQUIRE_ALL") == "1":
            pytest.fail(message)
        pytest.skip(message)
    build = [program, "build", "--quiet", "--locked", "--example", name, "--manifest-path", str(CRATE / "Cargo.toml")]
    subprocess.run(build, check=True, timeout=600)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or CRATE / "target")
    return str(target / "debug" / "examples" / name)
