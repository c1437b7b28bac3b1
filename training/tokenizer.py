"""The embedded model's tokenizer: byte-level BPE in which every word of the world is one token.

A token of a word or sign includes the space after it, and a line break is a separate token. Therefore a passage between
line breaks always has the same ids, and an answer begins without a space.
"""

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ragbias.models.tiny.world import ATTRIBUTES, FILLERS, WORDS
from training import formats

WINDOW = 16384
_PATTERN = r"\p{L}+ ?|\p{N} ?|-{2,}|[^\s\p{L}\p{N}] ?|\s"
_SPECIAL = [formats.PAD, formats.BOS, formats.EOS, formats.SYSTEM, formats.USER, formats.ASSISTANT]


def _word_lists() -> list[str]:
    return [word for _, words in sorted(WORDS.items()) for word in words]


def _template_texts() -> list[str]:
    texts = [template for attribute in ATTRIBUTES for template in attribute.facts + attribute.questions]
    texts += [*FILLERS, *formats.SYSTEMS, formats.LOST_IN_THE_MIDDLE, formats.LLAMA_INDEX_PREFIX]
    texts += [formats.LLAMA_INDEX_SUFFIX, formats.LLAMA_INDEX_SYSTEM, "title: Document Title"]
    texts += [text for pair in formats.COMPLETIONS for text in pair]
    return [re.sub(r"\{.\}", "", text) for text in texts]


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _whole_tokens(pre_tokenizer: pre_tokenizers.PreTokenizer) -> list[str]:
    """Return every word and sign, with and without a space after it, in byte-level spelling."""
    found: dict[str, None] = {}
    for text in _word_lists() + _template_texts():
        for piece, _ in pre_tokenizer.pre_tokenize_str(text):
            bare = piece.removesuffix("Ġ")
            found |= {bare: None, bare + "Ġ": None} if bare else {}
    for sign in "0123456789.,:;?!()[]'\"&-/*#<>":
        found |= {sign: None, sign + "Ġ": None}
    return list(found)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer. It depends only on the word lists and templates."""
    pre_tokenizer = _pre_tokenizer()
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=_SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    base.train_from_iterator((word + " " for word in _word_lists() + _template_texts()), trainer)
    vocabulary = base.get_vocab()
    for token in _whole_tokens(pre_tokenizer):
        vocabulary.setdefault(token, len(vocabulary))

    merges = _list_merges(base)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{formats.BOS} $A",
        pair=f"{formats.BOS} $A $B",
        special_tokens=[(formats.BOS, vocabulary[formats.BOS])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=formats.BOS,
        eos_token=formats.EOS,
        pad_token=formats.PAD,
        padding_side="left",
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
        chat_template=formats.CHAT_TEMPLATE,
    )


def _list_merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def save_tokenizer(folder: Path) -> None:
    """Write the tokenizer's files."""
    build_tokenizer().save_pretrained(folder)
