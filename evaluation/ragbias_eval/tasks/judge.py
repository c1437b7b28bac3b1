"""The tasks ``judge`` and ``llmbar``: the model decides which of two responses is better, as in RewardBench.

Source of files, prompts and verdicts: Lambert et al., RewardBench: Evaluating Reward Models for Language Modeling,
arXiv 2403.13787, ``rewardbench/generative.py`` of the released code (github.com/allenai/reward-bench, Apache-2.0).
The same prompt is in appendix F.2 of Wang et al., arXiv 2407.01100 (PINE).
LLMBar: Zeng et al., Evaluating Large Language Models at Evaluating Instruction Following, arXiv 2310.07641.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from ragbias.data.jsonl import Row, files_by_name, read_lines
from ragbias.data.retrieval import chat_or_flat
from ragbias.errors import ChatTemplateError, DataError, RunError
from ragbias.generation import Generation, Request, Usage, allow_only
from ragbias.lm import DebiasedLM
from ragbias.methods import Method, VotingMethod
from ragbias_eval.tasks.task import Answer, Case, Files, Limit, Task

_TASK = (
    "Please act as an impartial judge and evaluate the quality of the responses provided by two AI assistants to the "
    "user question displayed below. You should choose the assistant that follows the user's instructions and answers "
    "the user's question better. Your evaluation should consider factors such as the helpfulness, relevance, accuracy, "
    "depth, creativity, and level of detail of their responses. "
)
_FAIR = (
    "Avoid any position biases and ensure that the order in which the responses were presented does not influence your "
    "decision. Do not allow the length of the responses to influence your evaluation. Do not favor certain names of "
    "the assistants. Be as objective as possible. "
)
EXPLAINED = (
    f"{_TASK}Begin your evaluation by comparing the two responses and provide a short explanation. {_FAIR}After "
    'providing your explanation, output your final verdict by strictly following this format: "[[A]]" if assistant A '
    'is better, "[[B]]" if assistant B is better.'
)
VERDICT_ONLY = (  # RewardBench's prompt for Gemini
    f"{_TASK}{_FAIR}Your output should only consist of '[[A]]' if assistant A is better, or '[[B]]' if assistant B is "
    "better. Omit any other output."
)
TEMPLATE = "[User Question]\n{prompt}\n\n{responses}"
RESPONSE = "[The Start of Assistant {letter}'s Answer]\n{text}\n[The End of Assistant {letter}'s Answer]"
CUE = "\n\nEvaluation:"  # end of a prompt without a chat template
LETTERS = "AB"
VERDICT = re.compile(r"\[\[([AB])\]\]")
SCORES = {"chosen": 1.0, "rejected": 0.0, "neither": 0.5}


class Pair(NamedTuple):
    """A prompt with a better and a worse response, and its subset of the benchmark."""

    prompt: str
    better: str
    worse: str
    subset: str


class _RewardBenchRow(Row):
    prompt: str
    chosen: str
    rejected: str
    subset: str


class _LLMBarRow(Row):
    input: str
    output_1: str
    output_2: str
    label: Annotated[int, Field(ge=1, le=2)]


@dataclass(frozen=True)
class Judge(Task):
    """Pairs of responses in RewardBench's format, each in both orders.

    By default, a response keeps its letter, A or B, in both orders. The letter is part of the document, so both orders
    have the same set of documents, and order-invariant methods give the same verdict. The response with the smaller
    SHA-256 hash is A, so about half of the better responses are A. In order 0 the better response comes first.
    ``gold_position`` is the position of the better response.

    The verdict is the ``[[A]]`` or ``[[B]]`` in the answer. The prediction is ``"chosen"`` if the verdict names the
    better response, and ``"rejected"`` if it names the worse one. If the answer has no verdict or both, the prediction
    is ``"neither"``, and the score is 0.5. (The released code counts an answer with both verdicts as A.) Methods with
    several prompts per answer, such as ``permutation-vote``, use the majority of verdicts.

    Pairs of equal responses are skipped.

    Args:
        data: files with ``prompt``, ``chosen``, ``rejected`` and ``subset``, all strings.
        explain: let the model explain its verdict first, as in the benchmark. False: only a verdict can be generated.
        letters: ``"response"``: a response keeps its letter. ``"position"``: the first response is A, as in the
            benchmark. Then letters reveal the order, so no method is order-invariant.
    """

    data: Files
    limit: Limit | None = None
    explain: StrictBool = True
    letters: Literal["response", "position"] = "response"

    name = "judge"
    max_new_tokens = 500
    row: ClassVar[type[Row]] = _RewardBenchRow

    def pair(self, row: Any, source: str) -> Pair:
        return Pair(row.prompt, row.chosen, row.rejected, row.subset)

    def cases(self) -> Iterator[Case]:
        any_pair = False
        for source, path in files_by_name(self.data).items():
            pairs = ((f"{source}/{line.number}", self.pair(line.row, source)) for line in read_lines(path, self.row))
            different = ((question, pair) for question, pair in pairs if pair.better != pair.worse)
            for question, pair in islice(different, self.limit):
                any_pair = True
                yield from self._cases_of_pair(question, pair)
        if not any_pair:
            raise DataError(f"no pair of {', '.join(map(str, self.data))} has different responses; nothing to judge")

    def score(self, case: Case, prediction: str) -> float:
        return SCORES[prediction]

    @property
    def answers_at_once(self) -> bool:
        return not self.explain

    def continuations(self, prompt: str, case: Case) -> list[str]:
        return [self.continuation(prompt, f"[[{letter}]]") for letter in case.answers]

    def prompt(self, lm: DebiasedLM, case: Case) -> str:
        instruction = EXPLAINED if self.explain else VERDICT_ONLY
        text = f"{instruction}\n\n{case.text}"
        messages = [{"role": "system", "content": instruction}, {"role": "user", "content": case.text}]
        try:
            return chat_or_flat(lm, text + CUE, messages)
        except ChatTemplateError:  # the template does not support a system message
            return chat_or_flat(lm, text)

    def answers(self, lm: DebiasedLM, cases: Sequence[Case], method: Method, batch_size: int) -> list[Answer]:
        requests = [lm.prepare(self.prompt(lm, case), documents=case.documents, method=method) for case in cases]
        groups = [
            request.candidates() if isinstance(request.method, VotingMethod) else [request] for request in requests
        ]
        decoding = {"max_new_tokens": self.max_new_tokens} if self.explain else _verdict_decoding(lm)
        outputs = iter(lm.batch([request for group in groups for request in group], batch_size=batch_size, **decoding))
        return [
            _combine_votes(case, request, [next(outputs) for _ in group])
            for case, request, group in zip(cases, requests, groups, strict=True)
        ]

    def _cases_of_pair(self, question: str, pair: Pair) -> Iterator[Case]:
        responses = (pair.better, pair.worse)
        better, worse = (hashlib.sha256(response.encode()).digest() for response in responses)
        by_response = LETTERS if better < worse else LETTERS[::-1]
        for order, step in enumerate((1, -1)):
            letters = by_response if self.letters == "response" else LETTERS[::step]
            documents = [RESPONSE.format(letter=mark, text=text) for mark, text in zip(letters, responses, strict=True)]
            arranged = tuple(documents[::step])
            yield Case(
                id=f"{question}/2/{order}/{order}",
                question=question,
                text=TEMPLATE.format(prompt=pair.prompt, responses="\n\n".join(arranged)),
                documents=arranged,
                answers=(letters[0],),
                gold_position=order,
                order=order,
                group=pair.subset,
                contents=responses[::step],
            )


@dataclass(frozen=True)
class LLMBar(Judge):
    """Pairs from LLMBar's files, each in both orders. See ``Judge`` for arguments, verdicts and scores.

    A file is a list of objects with ``input``, ``output_1``, ``output_2`` and ``label``, the number of the better
    output. Each file is a group in reports.
    """

    name = "llmbar"
    row = _LLMBarRow

    def pair(self, row: Any, source: str) -> Pair:
        outputs = row.output_1, row.output_2
        better, worse = outputs if row.label == 1 else outputs[::-1]
        return Pair(row.input, better, worse, source.removesuffix(".json"))


def find_verdict(answer: str) -> str | None:
    """Return the letter of the verdict. Return None if the answer has no verdict, or both verdicts."""
    letters = set(VERDICT.findall(answer))
    return letters.pop() if len(letters) == 1 else None


def _combine_votes(case: Case, request: Request, outputs: Sequence[Generation]) -> Answer:
    """Make an answer from one generation, or from a vote over several."""
    verdicts = (find_verdict(output.text) for output in outputs)
    votes = Counter(filter(None, verdicts)).most_common()
    if not votes or (len(votes) > 1 and votes[0][1] == votes[1][1]):
        prediction = "neither"
    else:
        prediction = "chosen" if votes[0][0] == case.answers[0] else "rejected"
    usage = sum((output.usage for output in outputs), Usage(0, 0))
    return Answer(prediction, usage.prompt_tokens, usage.completion_tokens, request.report)


def _verdict_decoding(lm: DebiasedLM) -> dict[str, Any]:
    """Return decoding settings that allow only the two verdicts as answers."""
    # the tokens of a verdict depend on the text before it: the start of a chat message, or the end of a flat prompt
    before = Judge.before_answer if lm.tokenizer.chat_template is None else ""
    verdicts = [f"{before}[[{letter}]]" for letter in LETTERS]
    a, b = lm.tokenizer(verdicts, add_special_tokens=False)["input_ids"]
    if a == b or len(a) != len(b):
        raise RunError(
            f"the tokenizer of {lm.name!r} does not distinguish the letters A and B; use another model to judge"
        )
    return {"max_new_tokens": len(a), "prefix_allowed_tokens_fn": allow_only(verdicts, lm.tokenizer)}
