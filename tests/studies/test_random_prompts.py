"""Random prompts of given lengths."""

import torch

from studies.speed_inputs import PREFIX, SUFFIX, document_lengths, draw_prompts

CPU = torch.device("cpu")


def documents(batch):
    return [ids[begin:end].tolist() for ids, spans in zip(batch.ids, batch.spans, strict=True) for begin, end in spans]


def test_an_equal_total_is_shared_out_whole():
    assert document_lengths(3, 7, None) == [7, 7, 7]
    for count in (1, 2, 7, 20):
        lengths = document_lengths(count, 0, 20)
        assert (len(lengths), sum(lengths)) == (count, 20)
        assert max(lengths) - min(lengths) <= 1


def test_each_sequence_of_a_batch_has_documents_of_its_own():
    batch = draw_prompts([5, 6, 7], 4, 1000, CPU)
    assert batch.ids.shape == (4, PREFIX + 18 + SUFFIX)
    assert len({tuple(document) for document in documents(batch)}) == 12
    assert documents(batch) == [document for prompt in batch.prompts for document in prompt.documents]
    assert not batch.has_padding and batch.inputs(0) == {}
    assert torch.equal(batch.ids, draw_prompts([5, 6, 7], 4, 1000, CPU).ids)  # the same again


def test_ragged_lengths_spread_around_the_given_one_and_pad():
    batch = draw_prompts([10] * 50, 2, 1000, CPU, ragged=True)
    lengths = [len(document) for document in documents(batch)]
    assert (min(lengths), max(lengths)) == (5, 15)
    assert len(set(lengths)) == 11
    lengths = [len(prompt.ids) for prompt in batch.prompts]
    assert batch.has_padding and batch.mask.sum(1).tolist() == lengths
    assert (batch.mask.diff(dim=1) >= 0).all() and not batch.ids[batch.mask == 0].any()  # on the left, with token 0
    assert documents(batch) == [document for prompt in batch.prompts for document in prompt.documents]


def test_positions_count_from_the_first_token_after_padding():
    batch = draw_prompts([10] * 4, 3, 1000, CPU, ragged=True)
    lengths = [len(prompt.ids) for prompt in batch.prompts]
    for step in (0, 1, 3):
        inputs = batch.inputs(step)
        assert inputs["attention_mask"].sum(1).tolist() == [length + step for length in lengths]
        assert inputs["position_ids"][:, -1].tolist() == [length + step - 1 for length in lengths]
        assert inputs["position_ids"].shape[1] == (1 if step else batch.ids.shape[1])
