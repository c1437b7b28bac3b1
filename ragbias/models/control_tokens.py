"""Tokenise untrusted text as data. Strings such as ``<|im_end|>`` then do not become control tokens.

``ControlTokens.shield`` marks such strings by replacing their first character. The length of the text and all spans
stay the same. ``encode`` restores the text, and tokenises marked strings as ordinary characters.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from ragbias.errors import ChatTemplateError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKS = 0x100000  # first code point of a private-use plane


class ControlTokens:
    """The control-token strings of a tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        try:
            special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
            special = {*special, *tokenizer.all_special_tokens} - {""}
        except NotImplementedError:  # tokenizers of mistral-common tokenise all text as data
            special = set()
        longest_first = sorted(special, key=len, reverse=True)
        firsts = sorted({ord(token[0]) for token in longest_first})
        self._mark = {first: MARKS + index for index, first in enumerate(firsts)}
        self._first = {mark: first for first, mark in self._mark.items()}
        marked = [token[0].translate(self._mark) + token[1:] for token in longest_first]
        self.unmarked = _pattern_of(longest_first)
        self.marked = _pattern_of(marked)
        self._tokenizer = ref(tokenizer)
        self.size = len(tokenizer)

    def shield(self, text: str, spans: Sequence[tuple[int, int]] | None = None) -> str:
        """Mark all control-token strings in a text, or only those that overlap one of the spans.

        If the text is a ``ChatText``, its marks remain.
        """

        def mark(match: re.Match[str]) -> str:
            inside = spans is None or any(begin < match.end() and match.start() < end for begin, end in spans)
            return match[0][0].translate(self._mark) + match[0][1:] if inside else match[0]

        if isinstance(text, ChatText):
            text = text.shielded
        return re.sub(self.unmarked, mark, text)

    def restore(self, text: str) -> str:
        """Return the text without marks."""
        return re.sub(self.marked, lambda match: match[0][0].translate(self._first) + match[0][1:], text)

    @cached_property
    def tokenizer_of_data(self) -> PreTrainedTokenizerBase:
        """A copy of the tokenizer that tokenises control-token strings as text.

        The original must not change, because threads share it.
        """
        copied = copy.deepcopy(self._tokenizer())
        assert copied is not None
        copied.split_special_tokens = True
        return copied


def _pattern_of(tokens: Sequence[str]) -> str:
    """Return a pattern that matches any of the tokens. Without tokens, it matches nothing."""
    return "|".join(map(re.escape, tokens)) or "(?!)"


_controls_of: WeakKeyDictionary[PreTrainedTokenizerBase, ControlTokens] = WeakKeyDictionary()


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> ControlTokens:
    """Return the control tokens of a tokenizer. The result is cached until tokens are added to the tokenizer."""
    controls = _controls_of.get(tokenizer)
    if controls is None or controls.size != len(tokenizer):
        controls = _controls_of[tokenizer] = ControlTokens(tokenizer)
    return controls


def is_shielded(text: str, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a text contains marked strings."""
    return re.search(control_tokens(tokenizer).marked, text) is not None


def encode(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids of a text, without BOS. Marked strings become ordinary tokens."""
    if not is_shielded(text, tokenizer):
        return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []
    controls = control_tokens(tokenizer)
    ids: list[int] = []
    plain = ""
    for piece in re.split(f"({controls.unmarked})", text):
        if is_shielded(piece, tokenizer):
            data = controls.tokenizer_of_data(controls.restore(piece), add_special_tokens=False)
            ids += encode(plain, tokenizer) + data["input_ids"]
            plain = ""
        else:
            plain += piece
    return ids + encode(plain, tokenizer)


class ChatText(str):
    """The text of a conversation. In ``shielded``, control-token strings of messages are marked as data.

    Concatenation with other text preserves the marks.
    """

    shielded: str

    def __new__(cls, text: str, shielded: str = "") -> ChatText:
        rendered = super().__new__(cls, text)
        rendered.shielded = shielded or text
        return rendered

    def __add__(self, other: str) -> ChatText:
        return ChatText(str.__add__(self, other), str.__add__(self.shielded, getattr(other, "shielded", other)))

    def __radd__(self, other: str) -> ChatText:
        return ChatText(str.__add__(other, self), str.__add__(other, self.shielded))


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None,
    variables: Mapping[str, Any],
) -> str:
    """Render a conversation with the chat template. Return a ``ChatText`` if it contains control-token strings."""
    controls = control_tokens(tokenizer)

    def shield(value: Any) -> Any:
        if isinstance(value, str):
            return controls.shield(value)
        if isinstance(value, Mapping):
            return {key: shield(item) for key, item in value.items()}
        return [shield(item) for item in value] if isinstance(value, (list, tuple)) else value

    arguments = {"tokenize": False, "add_generation_prompt": True, **shield(variables)}
    try:
        text = str(tokenizer.apply_chat_template(shield(list(messages)), tools=shield(tools) or None, **arguments))
    except Exception as error:  # templates raise errors of any class
        raise ChatTemplateError(
            f"the chat template fails on this conversation ({type(error).__name__}: {first_line(error)}); change the "
            "roles or their order, set tokenizer.chat_template, or pass a flat prompt"
        ) from error
    restored = controls.restore(text)
    return text if restored == text else ChatText(restored, text)
