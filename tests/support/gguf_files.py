"""A small GGUF file: a random Llama with a tokenizer of single characters."""

from pathlib import Path

import gguf
import numpy as np

WORDS = ["<unk>", "<s>", "</s>", *map(chr, range(33, 127)), "Ġ", "Ċ", "ab", "cd"]
LAYERS, HIDDEN, HEADS, KEY_HEADS, INNER = 2, 64, 4, 2, 96


def write_gguf(path: Path, architecture: str = "llama", template: str | None = None, without: str = "") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, *[1] * (len(WORDS) - 3)])
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    for name, shape in _shapes().items():
        if name == without:
            continue
        weight = np.random.default_rng(len(name)).normal(size=shape, scale=0.3).astype(np.float32)
        if "norm" in name:
            writer.add_tensor(name, np.abs(weight))
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes() -> dict[str, tuple[int, ...]]:
    keys = HIDDEN // HEADS * KEY_HEADS
    layer = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (keys, HIDDEN),
        "attn_v": (keys, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    shapes = {f"blk.{index}.{name}.weight": shape for index in range(LAYERS) for name, shape in layer.items()}
    return {"token_embd.weight": (len(WORDS), HIDDEN), **shapes, "output_norm.weight": (HIDDEN,)}
