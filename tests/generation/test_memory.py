"""Out-of-memory errors name the running request and a remedy."""

import subprocess
import sys

import pytest
import torch

from ragbias.errors import OutOfMemoryError
from ragbias.generation.decoding import memory_errors

UNDER_A_LIMIT = """
import resource
from pathlib import Path
from ragbias import DebiasedLM
from ragbias.errors import OutOfMemoryError
lm = DebiasedLM.from_pretrained("tiny", method="none", attn_implementation="eager")
lm.generate("warm up", max_new_tokens=1)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
try:
    lm.generate("book " * 5000, max_new_tokens=1)
except OutOfMemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process")
def test_a_limit_of_the_process_is_reported():
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], capture_output=True, text=True, timeout=300)
    assert "no memory left on cpu for 1 prompts of up to" in done.stdout, done.stderr[-2000:]


def test_errors_of_memory_are_explained_and_others_are_left():
    for error in (torch.OutOfMemoryError("CUDA out of memory"), MemoryError()):
        with pytest.raises(OutOfMemoryError, match="2 prompts of up to 9 tokens"), memory_errors([3, 9], "cuda:0"):
            raise error
    with pytest.raises(RuntimeError, match="shape") as other, memory_errors([3], "cpu"):
        raise RuntimeError("shape")
    assert not isinstance(other.value, OutOfMemoryError)
