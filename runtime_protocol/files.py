"""The protocol's two documents, which come with the package."""

from pathlib import Path

_HERE = Path(__file__).parent

DOCUMENT = _HERE / "PROTOCOL.md"
CONTRACT = _HERE / "openapi.yaml"
