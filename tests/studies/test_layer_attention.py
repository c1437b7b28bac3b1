"""Attention by layer: against the eager model's weights, and under permutations of the documents."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from audit_questions import question_lines, write
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.text import Text

from ragbias import DebiasedLM, Prompt
from ragbias.attention import segment_scores
from ragbias.data.questions import Question
from ragbias.data.retrieval import stock_prompt
from ragbias.errors import DataError, MethodError
from ragbias.methods import (
    ChannelScaling,
    MsPoE,
    NoMethod,
    ParallelContextWindows,
    PermutationVote,
    Pine,
    PositionInterpolation,
    RoToR,
)
from studies.inspect_attention import LEGEND, draw_heat_maps, gold_ratios
from studies.interventions import HideKeys, ScaleAttention
from studies.layer_attention import View, arrangements, attention_by_layer, find_gold, measure_views
from support.random_models import random_model

DOCUMENTS = ["A tin owl sits.\n", "Two brass whales, far away.\n", "Old boats.\n", "One more cat there.\n"]
PROMPT = Prompt("Read:\n", DOCUMENTS, "Who sits?")
ORDER = [2, 0, 3, 1]


def eager_masses(family, ids, spans):
    """Return sums of the weights of transformers' eager attention."""
    model = random_model(family, attn_implementation="eager")
    with torch.no_grad():
        attentions = model(torch.tensor([ids]), output_attentions=True).attentions
    last = [layer[0, :, -1].mean(0) for layer in attentions]
    return torch.stack([torch.stack([weights[begin:end].sum() for begin, end in spans]) for weights in last])


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox", "smollm3", "mpt"])
def test_plain_attention_is_that_of_the_eager_model(family, byte_tokenizer):
    lm = DebiasedLM(random_model(family), byte_tokenizer, method="none")
    request = lm.prepare(PROMPT)
    found = attention_by_layer(lm, request)
    expected = eager_masses(family, request.tokens.ids, request.tokens.spans)
    assert found.shape == (4, 4)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", [Pine(), Pine(layers=(1, 2)), RoToR(), ParallelContextWindows()], ids=str)
def test_permuted_documents_permute_invariant_attention(lm, method):
    prompts = PROMPT, PROMPT.reordered(ORDER)
    as_came, moved = (attention_by_layer(lm, lm.prepare(prompt, method=method)) for prompt in prompts)
    assert not torch.equal(as_came, attention_by_layer(lm, lm.prepare(PROMPT, method="none")))
    torch.testing.assert_close(as_came[:, ORDER], moved, atol=0, rtol=0)


def test_plain_attention_does_not_merely_permute(lm):
    prompts = PROMPT, PROMPT.reordered(ORDER)
    as_came, moved = (attention_by_layer(lm, lm.prepare(prompt, method="none")) for prompt in prompts)
    assert (as_came[:, ORDER] - moved).abs().max() > 1e-3


def test_neutral_methods_look_where_the_plain_model_looks(lm):
    plain = attention_by_layer(lm, lm.prepare(PROMPT, method="none"))
    for method in (PositionInterpolation(1.0), MsPoE(1.0, 1.0, layers=(1, 2)), ChannelScaling(3, 1.0, layers=(1, 2))):
        found = attention_by_layer(lm, lm.prepare(PROMPT, method=method))
        torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-4)


def test_pine_weighs_at_the_positions_it_assigns(lm):
    """Compare with a softmax over documents positioned by importance, all in one segment list."""
    weighed = []

    class Placed(Pine):
        def attend_tail(self, sequence, keys, documents, starts):
            last = sequence.query[:, -1:]
            scores = segment_scores(
                last,
                keys,
                positions=self.tail_positions(sequence)[-1:],
                scoring=sequence.scoring,
                segments=[(0, sequence.prefix), *sequence.spans, (sequence.documents_end, sequence.key.shape[1])],
                starts=self._starts(sequence, last),
            )
            weights = scores.softmax(-1).mean((0, 1))
            weighed.append(torch.stack([weights[begin:end].sum() for begin, end in sequence.spans]))
            return super().attend_tail(sequence, keys, documents, starts)

    request = lm.prepare(PROMPT, method=Placed())
    found = attention_by_layer(lm, request)
    documents = request.tokens.documents
    canonical = sorted(range(4), key=lambda index: documents[index])
    assert len(weighed) == 8  # each layer is asked for its weights, then for its output
    torch.testing.assert_close(found[:, canonical], torch.stack(weighed[::2]), atol=1e-5, rtol=1e-4)


def test_reading_the_weights_changes_nothing_of_the_run(lm):
    request = lm.prepare(PROMPT, method="pine")
    before = lm.batch([request], max_new_tokens=4)[0].token_ids
    first = attention_by_layer(lm, request)
    assert lm.batch([request], max_new_tokens=4)[0].token_ids == before
    torch.testing.assert_close(attention_by_layer(lm, request), first, atol=0, rtol=0)


def test_more_documents_than_channels_are_read_in_parts(lm):
    many = Prompt(PROMPT.prefix, [f"{index} {document}" for index in range(6) for document in DOCUMENTS], "Who?")
    request = lm.prepare(many, method="none")
    found = attention_by_layer(lm, request)
    assert found.shape == (4, 24)  # heads of 16 channels
    torch.testing.assert_close(
        found, eager_masses("llama", request.tokens.ids, request.tokens.spans), atol=1e-5, rtol=1e-4
    )


def test_reordered_documents_are_shown_at_retrieved_places(lm):
    request = lm.prepare(PROMPT, method="long-context-reorder")
    inside = [PROMPT.documents.index(document) for document in _texts(lm, request)]
    plain = attention_by_layer(lm, lm.prepare(PROMPT.reordered(inside), method="none"))
    torch.testing.assert_close(attention_by_layer(lm, request)[:, inside], plain, atol=0, rtol=0)


def _texts(lm, request):
    return [lm.tokenizer.decode(ids) for ids in request.tokens.documents]


def test_a_vote_is_refused_by_name(lm):
    with pytest.raises(MethodError, match=r"permutation-vote\(samples=3\) runs several prompts"):
        measure_views(lm, [Question("q", ("a", "b"))], {"permutation-vote(samples=3)": PermutationVote(3)})


def test_questions_need_equally_many_documents(lm):
    with pytest.raises(DataError, match="the questions have 2, 3 documents"):
        measure_views(lm, [Question("q", ("a", "b")), Question("q", ("a", "b", "c"))], {"none": NoMethod()})


def test_gold_is_given_or_the_only_document_that_answers():
    documents = ("The owl is brass.", "The owl is tin.", "The cat is tin.")
    assert find_gold(Question("q", documents, ("brass",), gold=2)) == 2
    assert find_gold(Question("q", documents, ("brass",))) == 0
    assert find_gold(Question("q", documents, ("tin",))) is None
    assert find_gold(Question("q", documents)) is None


def test_layers_that_look_at_the_gold_document_are_marked():
    assert moved_view([0.1, 0.6, 0.4, 0.2]).retrieval_layers == [1, 2]
    assert View(torch.rand(4, 3), None, 0).retrieval_layers == []


def moved_view(gold, documents=3):
    """Return a view: some layers give the gold document this weight at any position, all others 0.1."""
    moved = torch.full((3, len(gold), documents), 0.1)
    for index, position in enumerate((0, (documents - 1) // 2, documents - 1)):
        moved[index, :, position] = torch.tensor(gold)
    return View(moved[0], moved, 7)


def test_the_gold_documents_share_is_reported_by_position():
    view = moved_view([0.1, 0.6], documents=5)
    assert list(view.gold_by_position) == ["first", "middle", "last"]
    for layers in view.gold_by_position.values():
        assert layers == [pytest.approx((0.1, 0.1)), pytest.approx((0.6, 0.1))]
    assert gold_ratios(view) == pytest.approx([6, 6, 6])  # of layer 1 alone, which retrieves
    view.moved[1, 1, 2] = 0.3
    assert gold_ratios(view) == pytest.approx([6, 3, 6])


def test_a_moved_gold_document_leaves_invariant_methods_alone(lm):
    documents = tuple(document.strip() for document in DOCUMENTS)
    questions = [Question("Who sits?", documents, gold=gold) for gold in (3, 1)] + [Question("Who?", documents)]
    views = measure_views(lm, questions, {"none": NoMethod(), "pine": Pine()})
    first, *others = views["pine"].gold_by_position.values()
    torch.testing.assert_close(torch.tensor(others), torch.tensor([first] * 2))
    plain = torch.tensor(list(views["none"].gold_by_position.values()))
    assert (plain[0] - plain[2]).abs().max() > 1e-3
    assert views["pine"].known == 2


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def test_equal_orders_and_invariant_methods_run_once(lm):
    question, passes = Question("Who sits?", tuple(DOCUMENTS), gold=0), []
    with lm.model.register_forward_hook(lambda *_: passes.append(1)):
        plain = measure_views(lm, [question], {"none": NoMethod()})["none"]
        assert len(passes) == 3  # gold is first as retrieved, then in the middle and last
        view = measure_views(lm, [question], {"pine": Pine()})["pine"]
        assert len(passes) == 3 + 1
    assert torch.equal(plain.attention, plain.moved[0])
    for order, found in zip(arrangements(0, len(DOCUMENTS)), view.moved, strict=True):
        documents = [DOCUMENTS[index] for index in order]
        request = lm.prepare(stock_prompt(lm, documents, question.question), documents=documents, method=Pine())
        torch.testing.assert_close(found, attention_by_layer(lm, request), atol=0, rtol=0)


def test_a_picture_of_many_layers_is_drawn(tmp_path):
    view = moved_view([0.9 if layer == 41 else 0.1 for layer in range(80)], documents=60)
    figure = draw_heat_maps({"none": view}, "title")
    figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "▸ 41" in texts(figure)


def test_the_picture_frames_gold_and_omits_empty_layers():
    view = moved_view([0.6, 0.1, 0.1], documents=5)
    view.moved[:, 2] = 0
    figure = draw_heat_maps({"none": view, "pine": view}, "title")
    assert {"gold first", "none\ngold middle", "pine\ngold middle", "gold last"} <= set(texts(figure))
    assert "none: 6, 6, 6 (▸ layer 0)" in texts(figure)
    middle = next(axis for axis in figure.findobj(Axes) if axis.get_title() == "none\ngold middle")
    shares = middle.images[0].get_array()
    assert shares[0].tolist() == pytest.approx([0.5, 0.5, 3, 0.5, 0.5])
    assert shares[1].tolist() == pytest.approx([1] * 5)
    assert shares.mask.tolist() == [[False] * 5] * 2 + [[True] * 5]
    hatched, frame = middle.patches
    assert (hatched.get_hatch(), hatched.get_y()) == ("////", 1.5)
    assert (frame.get_x(), frame.get_width(), frame.get_height()) == (1.5, 1, 3)


def test_titles_and_legend_fit_the_picture_without_overlap():
    view = moved_view([0.6, 0.1, 0.1], documents=10)
    figure = draw_heat_maps({f"pine, hide(queries=question,keys={index})": view for index in range(5)}, "title")
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    for box in [figure.subfigs[1].legends[0].get_window_extent(), figure.subfigs[1].axes[0].get_tightbbox()]:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
    titles = [axis.title.get_window_extent() for axis in figure.subfigs[0].axes[:3]]
    assert titles[0].x1 < titles[2].x0 and titles[1].x1 <= width


@pytest.mark.parametrize("documents", [10, 20, 100])
def test_labels_of_positions_are_apart(documents):
    figure = draw_heat_maps({"none": moved_view([0.6, 0.1, 0.1], documents=documents)}, "title")
    figure.draw_without_rendering()
    for panel in figure.subfigs[0].axes[:3]:
        boxes = [label.get_window_extent() for label in panel.get_xticklabels()]
        assert len(boxes) > 3 and all(after.x0 - before.x1 > 5 for before, after in pairwise(boxes))


def test_without_a_gold_document_the_picture_is_as_retrieved():
    figure = draw_heat_maps({"none": View(torch.rand(2, 5), None, 0)}, "title")
    assert "none\nas retrieved" in texts(figure)
    assert not any("gold" in text for text in texts(figure))


def test_names_with_dollar_signs_are_drawn_letter_by_letter(tmp_path):
    name = r"a $\no$ b $x$"
    figure = draw_heat_maps({name: View(torch.rand(2, 3), None, 0)}, name)
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().count(name) == 2


def test_interventions_are_drawn_before_and_after(tmp_path, study):
    questions = write(tmp_path / "q.jsonl", question_lines(1, documents=4))
    out, figures = tmp_path / "a.png", tmp_path / "a.json"
    hide, double = (
        "hide(queries=question,keys=gold)",
        "scale-attention(queries=question,keys=2,factor=2)+shift(span=0,by=3)",
    )
    arguments = ["--questions", questions, "--out", out, "--json", figures, "--methods", "none,long-context-reorder"]
    code, _, errors = study(
        "inspect_attention", "--model", "tiny", *arguments, "--intervene", hide, "--intervene", double
    )
    assert code == 0, errors
    found = json.loads(figures.read_text())
    methods = ["none", "long-context-reorder"]
    assert list(found) == [each for method in methods for each in (method, f"{method}, {hide}", f"{method}, {double}")]
    for method in methods:
        before, hidden = found[method], found[f"{method}, {hide}"]
        assert min(each["gold"][1] for each in before["gold_by_position"].values()) > 0.1
        assert [each["gold"] for each in hidden["gold_by_position"].values()] == [[0] * 4] * 3
        assert hidden["retrieval_layers"] == before["retrieval_layers"] == [1]


def test_interventions_change_eager_weights_as_described(lm):
    request = lm.prepare(PROMPT, method="none")
    plain = attention_by_layer(lm, request)
    doubled = attention_by_layer(lm, request, [ScaleAttention("question", "gold", 2.0, layers=(0, 0))], gold=2)
    gold, other = plain[0, 2], plain[0, 1]
    torch.testing.assert_close(doubled[0, [2, 1]], torch.stack([2 * gold, other]) / (1 + gold), atol=2e-3, rtol=2e-2)
    mean_of_heads = attention_by_layer(lm, request, [HideKeys("question", 1), HideKeys("question", 0)])
    assert mean_of_heads[:, :2].tolist() == [[0, 0]] * 4


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hide(queries=question,keys=gold)", "is not known for 1 of 2 questions, such as question 2"),
        ("hide(queries=question,keys=7)", "document 7: the prompt has 5 documents; expected 0 to 4"),
        ("hide(queries=question)", "keys missing"),
        ("shift(span=(0,9999),by=2)", "lies outside the prompt"),
    ],
)
def test_interventions_that_fit_no_question_are_refused(tmp_path, study, spec, message):
    lines = question_lines(2, documents=5)
    lines[1] = {name: value for name, value in lines[1].items() if name in ("question", "documents")}
    questions = write(tmp_path / "q.jsonl", lines)
    code, _, errors = study(
        "inspect_attention",
        "--model",
        "tiny",
        "--questions",
        questions,
        "--out",
        tmp_path / "a.png",
        "--intervene",
        spec,
    )
    assert code == 2 and message in " ".join(errors.split())


def test_long_labels_are_broken_and_far_ratios_are_at_the_edge():
    view = moved_view([0.0, 0.0])
    label = "none, scale-attention(queries=question,keys=gold,factor=2)+shift(span=question,by=40)"
    figure = draw_heat_maps(
        {"none": moved_view([0.1, 0.6]), label: replace(view, before=moved_view([0.1, 0.6]))}, "title"
    )
    (drawn,) = [axis for axis in figure.findobj(Axes) if axis.get_title().startswith("Attention to the gold")]
    assert drawn.lines[1].get_ydata().tolist() == [1 / 1024] * 3
    (legend,) = figure.subfigs[1].legends
    assert all(len(line) <= LEGEND for text in legend.get_texts() for line in text.get_text().split("\n"))


def test_command_draws_and_writes(tmp_path, study):
    questions = write(tmp_path / "q.jsonl", question_lines(3, documents=6))
    out, figures = tmp_path / "a.png", tmp_path / "a.json"
    arguments = ["--questions", questions, "--out", out, "--limit", 2, "--json", figures]
    code, _, _ = study("inspect_attention", "--model", "tiny", *arguments)
    assert code == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    found = json.loads(figures.read_text())
    assert list(found) == ["none", "pine"]
    by_position = [each["gold"][1] for each in found["pine"]["gold_by_position"].values()]
    assert by_position == pytest.approx([by_position[0]] * 3) and by_position[0] > 0.1
    assert len(found["pine"]["attention"]) == 4 and len(found["pine"]["attention"][0]) == 6
    assert found["none"]["retrieval_layers"] == [1]  # one layer of tiny looks documents up
