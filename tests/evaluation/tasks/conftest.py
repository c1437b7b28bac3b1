import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of examples, gzipped if its name says so."""

    def of(name: str, *examples: dict[str, Any]) -> Path:
        raw = "".join(json.dumps(example) + "\n" for example in examples).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return of
