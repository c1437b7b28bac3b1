"""Check the model of a vLLM engine, and compute its positional encodings and its identity in cache keys."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import vllm
from huggingface_hub import snapshot_download
from transformers import AutoModelForCausalLM
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig

from ragbias.binding import encodings_of, has_fixed_encodings
from ragbias.cache import identity_of
from ragbias.errors import ArgumentError, UnsupportedModelError
from ragbias.files import digest_of_file
from ragbias.models.loading import load_model

if TYPE_CHECKING:
    from ragbias.attention import Encoding

VERSION = "vllm-1"  # change it if the computation or the names of entries change
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf", "config.json")


def check_supported(config: VllmConfig, kv_cache: KVCacheConfig) -> None:
    """Raise ``ArgumentError`` if answers of the engine could be wrong."""
    transfer = config.kv_transfer_config
    cache_dtype = config.cache_config.cache_dtype
    specs = [group.kv_cache_spec for group in kv_cache.kv_cache_groups]
    full = len(specs) == 1 and type(specs[0]) is FullAttentionSpec
    spare = spare_slots(config)
    window = full and (specs[0].sliding_window or specs[0].attention_chunk_size)
    causes = {
        "kv_role must be kv_both": transfer.kv_role != "kv_both",
        "kv_load_failure_policy must be fail: recomputed documents would attend to each other": (
            transfer.kv_load_failure_policy != "fail"
        ),
        "tensor and pipeline parallelism must be 1": config.parallel_config.world_size != 1,
        "speculative decoding is not supported": config.speculative_config is not None,
        "max_loras must exceed the number of adapters, as vLLM's CPU kernels need an empty slot": spare == 0,
        "every layer must have full attention over one kind of cache": not full or bool(window),
        f"kv_cache_dtype={cache_dtype} differs from the model's dtype": full
        and specs[0].dtype != config.model_config.dtype,
    }
    if reasons := [cause for cause, holds in causes.items() if holds]:
        raise ArgumentError(f"RagBiasConnector: {'; '.join(reasons)}")


def spare_slots(config: VllmConfig) -> int | None:
    """Return the maximum number of LoRA adapters for an engine, or None for no limit.

    On CPUs, this is one less than the number of adapter slots, because the last slot must stay empty: if a batch mixes
    requests with and without adapters, vLLM's CPU kernels apply the last slot to the requests without adapters.
    """
    if config.lora_config is None or not current_platform.is_cpu():
        return None
    return int(config.lora_config.max_loras) - 1


def portable_identity(config: VllmConfig) -> str:
    """Return the identity that ``DocumentCache(portable=True)`` uses. This temporarily loads the model on the CPU."""
    model = config.model_config
    if model.quantization or model.hf_overrides:
        raise ArgumentError("RagBiasConnector: portable=true supports neither quantised models nor --hf-overrides")
    loaded = load_model(model.model, {"dtype": model.dtype, "revision": model.revision})
    return identity_of(loaded, "", portable=True)


def engine_identity(config: VllmConfig) -> str:
    """Return a digest of the weights, settings, versions and device that affect keys and values.

    It differs from the identity in ``DocumentCache``, because vLLM's results also depend on other requests in a batch.
    """
    model = config.model_config
    device = f"{current_platform.get_device_name()} {torch.backends.cpu.get_cpu_capability()}"
    about = [VERSION, vllm.__version__, model.compute_hash(), str(model.dtype), device]
    backend = config.attention_config.backend
    about += [backend and str(backend), digest_of_files(model.model, model.revision)]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


@cache
def digest_of_files(model: str, revision: str | None) -> str:
    """Return a SHA-256 of a model's weight and configuration files."""
    folder = Path(model)
    if not folder.is_dir():
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=list(WEIGHTS), local_files_only=True))
    files = sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)})
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        digests = [digest.hex() for digest in pool.map(digest_of_file, files)]
    return hashlib.sha256(json.dumps([[path.name for path in files], digests]).encode()).hexdigest()


def load_encodings(config: VllmConfig) -> list[Encoding]:
    """Return each layer's positional encoding.

    Raises:
        UnsupportedModelError: an encoding is not rotary, or depends on the prompt's length.
    """
    hf_config = config.model_config.hf_config
    longest = config.model_config.max_model_len
    with torch.device("meta"):  # no weights
        model = AutoModelForCausalLM.from_config(hf_config)
    decoder: Any = model.get_decoder() if has_fixed_encodings(model, longest) else None
    if not hasattr(decoder, "rotary_emb"):
        raise UnsupportedModelError(
            f"{hf_config.model_type}: positions of its keys depend on the length of the prompt, or are not rotary"
        )
    rotary: Any = type(decoder.rotary_emb)
    decoder.rotary_emb = rotary(config=hf_config.get_text_config())  # on the meta device, it has no frequencies
    return encodings_of(model, longest)
