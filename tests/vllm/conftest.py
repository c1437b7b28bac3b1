"""Tests that start vLLM run in its environment only: ``make test-vllm``."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("vllm") is None or find_spec("vllm").origin is None:  # this folder is found as a namespace package
    collect_ignore = ["test_equality.py", "test_stress.py", "test_store.py", "test_servers.py"]

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # has /reset_prefix_cache
}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(
                pytest.mark.timeout(1800)
            )  # an engine needs minutes to start if other programs use the cores
