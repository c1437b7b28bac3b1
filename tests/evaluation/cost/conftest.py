"""A model's configuration in a file, small enough to be measured in no time."""

import json

import pytest

from support.small_config import CONFIG


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(CONFIG))
    return path
