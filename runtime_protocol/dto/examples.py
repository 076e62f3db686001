"""The values that the examples of the contract share."""

from typing import Any

JOB = "01932f5e-8d3c-7b1a-9f00-3c5d2a7e4b10"
SNAPSHOT = "01932f5e-8d3b-7a55-8c11-9a0b1c2d3e4f"
CREDENTIAL = "01932f5e-0000-7c3d-a1b2-c3d4e5f60718"
RESULT = "01932f60-11aa-7e02-b3c4-d5e6f7081920"
REQUEST = "5f0c1f0a-6a39-4a4c-9d5e-0d6a4b1c2e3f"
INSTANCE = "runtime-7f3a"
TOKEN = "4f1d…64 characters…9c20"  # noqa: S105 - an example
NOW, LATER, DEADLINE = "2026-11-29T12:00:00.000Z", "2026-11-29T12:01:00.000Z", "2026-11-29T12:02:00.000Z"
RAW = '{"summary": "A river.", "facts": [{"text": "It is long.", "paragraph": "p1"}]}'
OUTPUT = {"summary": "A river.", "facts": [{"text": "It is long.", "paragraph": "p1"}]}
HASH = "12b8a6c9f6dd9ae0c3ee7f5b9a4f6d2a38d8a62c4a3bb0f6a2d8a50f1c9e7b44"
HOLDER: dict[str, Any] = {"runtimeInstanceId": INSTANCE, "attemptNo": 1, "lockToken": TOKEN}
