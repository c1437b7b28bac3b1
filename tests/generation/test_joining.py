"""Calls of several threads are answered together, and each gets its own answer or error."""

import threading
import time

import numpy as np
import pytest

from ragbias import DebiasedLM, Prompt
from ragbias.errors import PromptTooLongError
from support.forward_passes import forward_passes
from support.prompts import DOCUMENTS, PROMPT

PROMPTS = [PROMPT, *(Prompt("Read:\n", DOCUMENTS[:count], "\nWhat?") for count in (2, 3, 4))]


@pytest.fixture
def joined(lm):
    return DebiasedLM(lm.model, lm.tokenizer, strict=False)


def outcomes(calls):
    """What the calls give, made by threads at once."""
    found = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(index):
        barrier.wait()
        try:
            found[index] = calls[index]()
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_concurrent_calls_share_forward_passes_not_answers(joined, lm):
    calls = [lambda prompt=prompt: joined.generate(prompt, max_new_tokens=8).text for prompt in PROMPTS * 2]
    calls += [lambda: joined.generate(PROMPT, max_new_tokens=3, method="none").text]
    expected = [lm.generate(prompt, max_new_tokens=8).text for prompt in PROMPTS * 2]
    with forward_passes(joined.model) as passes:
        found = outcomes(calls)
    assert found == [*expected, lm.generate(PROMPT, max_new_tokens=3, method="none").text]
    assert max(passes) > 1 and len(passes) < 8 * len(PROMPTS) * 2


def test_calls_that_fail_together_are_retried_one_by_one(joined, lm):
    def refuse(_, args, kwargs):
        ids = kwargs["input_ids"]
        if len(ids) > 1 or ids.shape[1] == 6:
            raise ZeroDivisionError

    expected = lm.generate(PROMPT, max_new_tokens=4).text
    handle = joined.model.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        fails = [lambda: joined.generate("hello", max_new_tokens=4)] * 2  # 6 tokens
        fine = [lambda: joined.generate(PROMPT, max_new_tokens=4).text] * 4
        found = outcomes([*fails, lambda: joined.generate("book " * 40000), *fine])
    finally:
        handle.remove()
    assert [type(each) for each in found[:3]] == [ZeroDivisionError, ZeroDivisionError, PromptTooLongError]
    assert found[3:] == [expected] * 4


def test_functions_of_a_sequence_see_the_index_of_their_own_call(joined):
    seen = set()

    def allowed(index, ids):
        seen.add(index)
        return [70, 71]

    outcomes([lambda: joined.generate(PROMPT, max_new_tokens=4, prefix_allowed_tokens_fn=allowed)] * 4)
    assert seen == {0}


def test_a_cancelled_call_and_a_stream_hold_up_nobody(joined, lm):
    cancelled = threading.Event()
    with forward_passes(joined.model, lambda count: cancelled.set() if count == 2 else None):
        assert len(joined.batch([PROMPT], cancelled=cancelled, max_new_tokens=2000)[0].token_ids) < 2000
    stream = joined.stream(PROMPT, max_new_tokens=4)
    assert joined.generate(PROMPT, max_new_tokens=4).text == "".join(stream)


def test_a_cancelled_call_ends_by_itself_beside_others(joined, lm):
    settings = {"max_new_tokens": 12, "min_new_tokens": 12}
    expected, cancelled = lm.generate(PROMPT, **settings).token_ids, threading.Event()
    calls = [lambda: joined.batch([PROMPT], cancelled=cancelled, **settings)[0].token_ids]
    calls += [lambda: joined.generate(PROMPT, **settings).token_ids] * 3
    with forward_passes(joined.model, lambda count: cancelled.set() if count == 2 else None):
        own, *others = outcomes(calls)
    assert own != expected and others == [expected] * 3


@pytest.mark.slow
@pytest.mark.serial
def test_three_calls_at_once_take_less_time_than_three_in_a_row():
    lm = DebiasedLM.from_pretrained("tiny", method="none", strict=False)
    ask = lambda: lm.generate(PROMPT, max_new_tokens=48, min_new_tokens=48)  # noqa: E731
    ask()

    def seconds(count):
        begin = time.perf_counter()
        outcomes([ask] * count)
        return time.perf_counter() - begin

    measured = [(seconds(1), seconds(3)) for _ in range(5)]
    assert min(three for _, three in measured) < 2.6 * min(one for one, _ in measured)


def test_settings_that_cannot_be_compared_keep_calls_apart(joined, lm):
    expected = lm.generate(PROMPT, max_new_tokens=4, stop_token_ids=[5, 6]).text
    calls = [lambda: joined.generate(PROMPT, max_new_tokens=4, stop_token_ids=np.array([5, 6]))] * 3
    assert [found.text for found in outcomes(calls)] == [expected] * 3
