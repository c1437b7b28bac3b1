"""Tests that start vLLM run in its environment only: ``make test-vllm``."""

import os
from importlib.util import find_spec

if find_spec("vllm") is None or find_spec("vllm").origin is None:  # this folder is found as a namespace package
    collect_ignore = ["test_equality.py", "test_stress.py", "test_store.py"]

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
