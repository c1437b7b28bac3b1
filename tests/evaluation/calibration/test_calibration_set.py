"""Calibration sets: questions, the position of the gold document, and invalid files."""

import json
import string

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ragbias import DebiasedLM
from ragbias.errors import DataError, MethodError
from ragbias.models.tiny.world import is_held_out
from ragbias_eval.calibration.samples import CalibrationSettings, count_kv_pairs, make_calibration_set


def made_of(lm, model="m", **settings):
    return make_calibration_set(lm, CalibrationSettings(model, **settings).plan(lm.window))


def decode(lm, ids):
    return lm.tokenizer.decode(ids)


def test_key_value_sets_hold_the_queried_pair_at_every_depth(lm):
    made = made_of(lm, questions=2, documents=9, depths=3)
    assert (len(made[0]), len(made[1])) == (6, 12)
    assert [(sample.question, sample.gold) for sample in made[0]] == [(q, at) for q in (0, 1) for at in (0, 4, 8)]
    for sample in made[0]:
        key, value = json.loads(
            "[" + decode(lm, sample.prompt.documents[sample.gold]).strip(" ,\n").replace(":", ",") + "]"
        )
        assert f'Key: "{key}"' in decode(lm, sample.prompt.suffix)
        assert decode(lm, sample.answer).strip() == f'"{value}"'
        assert len(sample.prompt.documents) == 9
    again = made_of(lm, questions=2, documents=9, depths=3)
    other = made_of(lm, questions=2, documents=9, depths=3, seed=1)
    assert again == made and other != made


def test_key_value_sets_fit_the_window_by_default(lm):
    count = count_kv_pairs(lm)
    assert 2 <= count < 75  # the byte tokenizer needs 80 tokens for a pair, and the window is 4096
    made_of(lm, questions=1, depths=2)
    with pytest.raises(MethodError, match="window is 4096; use fewer documents"):
        made_of(lm, questions=1, documents=75, depths=2)


def test_at_a_single_depth_the_gold_document_is_in_the_middle(lm):
    assert [sample.gold for sample in made_of(lm, questions=2, documents=5, depths=1)[0]] == [2, 2]


def test_the_set_of_tiny_uses_training_names_only(tiny):
    made = made_of(tiny, "tiny", questions=3, documents=6, depths=2)
    for sample in (*made[0], *made[1]):
        for document in sample.prompt.documents:
            assert not is_held_out(decode(tiny, document).strip().splitlines()[0])
        assert decode(tiny, sample.answer).strip() in decode(tiny, sample.prompt.documents[sample.gold])


def lines(count):
    return [
        {
            "question": f"Who is {n}?",
            "documents": [f"{n} is a cat.", f"{n}{n} is a dog.", "A cow."],
            "answer": "cat",
            "gold": 0,
        }
        for n in range(10, 10 + count)
    ]


def test_a_file_is_split_into_choice_and_check_questions(lm, tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines(6)) + "\n\n")
    made = made_of(lm, data=path, depths=3)
    assert (len(made[0]), len(made[1])) == (12, 6)
    assert "12 is a cat." in decode(lm, made[1][0].prompt.documents[0])
    assert "10 is a cat." in decode(lm, made[0][2].prompt.documents[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gold": 3}, "'gold' is 3 with 3 documents"),
        ({"gold": True}, "gold: Input should be a valid integer, got True"),
        ({"gold": None}, "no 'gold'; each line needs question"),
        ({"documents": "one"}, "documents: Input should be a valid array, got 'one'"),
        ({"documents": ["x", " "]}, "documents.1: is empty"),
        ({"answer": ""}, "answer: is empty"),
        ({"documents": ["x"]}, "1 document; give two or more"),
        ({"question": None}, "question: Input should be a valid string, got None"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(lm, tmp_path, change, message):
    path = tmp_path / "set.jsonl"
    data = lines(3)
    data[1].update(change)
    path.write_text("\n".join(map(json.dumps, data)))
    with pytest.raises(DataError, match=f"line 2: {message}"):
        made_of(lm, data=path)


def test_a_file_of_broken_json_or_few_questions_is_refused(lm, tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text("{}\n")
    with pytest.raises(DataError, match="line 1: 'question' is missing"):
        made_of(lm, data=path)
    path.write_text(json.dumps(lines(1)[0]))
    with pytest.raises(DataError, match="contains 1 questions"):
        made_of(lm, data=path)


def test_a_line_needs_an_answer_of_which_several_may_be_right(lm, tmp_path):
    path = tmp_path / "set.jsonl"
    data = lines(3)
    del data[1]["answer"]
    path.write_text("\n".join(map(json.dumps, data)))
    with pytest.raises(DataError, match="line 2: no 'answer'; each line needs question"):
        made_of(lm, data=path)
    data[1]["answers"] = ["dog", "cat"]
    path.write_text("\n".join(map(json.dumps, data)))
    answers = {decode(lm, sample.answer).strip() for sample in made_of(lm, data=path)[0]}
    assert answers == {"cat", "dog"}


def test_an_answer_has_the_tokens_that_follow_its_prompt(llama, byte_tokenizer, tmp_path):
    """Llama 2's tokenizer adds a space before every text, but not before an answer in a chat."""
    vocabulary = {letter: index for index, letter in enumerate(dict.fromkeys("▁" + string.printable))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    spaced = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<")
    spaced.chat_template = byte_tokenizer.chat_template
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(map(json.dumps, lines(3))))
    sample = made_of(DebiasedLM(llama, spaced), data=path)[0][0]
    assert spaced.convert_ids_to_tokens(sample.answer) == list("cat")
