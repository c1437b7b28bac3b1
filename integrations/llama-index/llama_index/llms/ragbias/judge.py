"""A pairwise judge whose verdict does not change when the answers are swapped."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.async_utils import asyncio_run
from llama_index.core.evaluation import EvaluationResult, PairwiseComparisonEvaluator
from llama_index.core.evaluation.pairwise import DEFAULT_SYSTEM_TEMPLATE, EvaluationSource, _default_parser_function
from llama_index.core.prompts import BasePromptTemplate, ChatMessage, ChatPromptTemplate, MessageRole, PromptTemplate
from llama_index.llms.ragbias.base import RagBiasLLM

from ragbias import DebiasedLM, methods
from ragbias.call_site import warn
from ragbias.errors import ArgumentError, DocumentCacheWarning, RagBiasError
from ragbias.generation import allow_only

USER_TEMPLATE = (
    "[User Question]\n{query}\n\n[The Start of Reference]\n{reference}\n[The End of Reference]\n\n"
    "{answer_1}\n\n{answer_2}"
)
ANSWER_TEMPLATE = "[The Start of Assistant {label}'s Answer]\n{answer}\n[The End of Assistant {label}'s Answer]"
DEFAULT_EVAL_TEMPLATE = ChatPromptTemplate(
    message_templates=[
        ChatMessage(role=MessageRole.SYSTEM, content=DEFAULT_SYSTEM_TEMPLATE),
        ChatMessage(role=MessageRole.USER, content=USER_TEMPLATE),
    ]
)
VERDICTS = ("[[A]]", "[[B]]", "[[C]]")

Parser = Callable[[str], tuple[bool | None, float | None, str | None]]


class PairwiseJudge(PairwiseComparisonEvaluator):
    """A ``PairwiseComparisonEvaluator`` that treats the two answers as documents of an order-invariant method.

    The stock evaluator labels the first answer A, so the judge may prefer a position or a letter. This class labels the
    answer with the smaller SHA-256 as A, and the label is part of the answer's document. Both orders of the answers
    give the same set of documents. Therefore order-invariant methods, such as pine, give the same verdict, token for
    token. The judge may still prefer a letter, so ``enforce_consensus`` compares again with exchanged letters. If the
    verdicts prefer different answers, the result is a tie. Equal answers are a tie, and the judge is not called.

    Args:
        llm: the judge. A method that computes the answers separately, such as ape with a ``document_cache``, causes a
            warning.
        eval_template: template with ``{query}``, ``{reference}``, ``{answer_1}`` and ``{answer_2}``. The answers
            include their labels, so only white space may separate them.
        answer_template: template of an answer in the prompt, with ``{label}`` (A or B) and ``{answer}``.
        parser_function: converts the judge's text to passing, score and feedback. Passing means that A is better.
        enforce_consensus: whether to compare again with exchanged letters.
        explain: False restricts the judge to a verdict (``[[A]]``, ``[[B]]`` or ``[[C]]``), for speed and small models.

    Raises:
        RagBiasError: the LLM is not a ``RagBiasLLM``, or the template has text between the answers.
    """

    def __init__(
        self,
        llm: RagBiasLLM,
        eval_template: BasePromptTemplate | str | None = None,
        answer_template: str = ANSWER_TEMPLATE,
        parser_function: Parser = _default_parser_function,
        enforce_consensus: bool = True,
        explain: bool = True,
    ) -> None:
        if not isinstance(llm, RagBiasLLM):
            raise RagBiasError(f"llm is a {type(llm).__name__}; expected a RagBiasLLM, which takes documents")
        super().__init__(llm, eval_template or DEFAULT_EVAL_TEMPLATE, parser_function, enforce_consensus)
        self._judge = llm
        self._answer_template = answer_template
        self._settings: dict[str, Any] = {}
        if not explain:
            if not isinstance(llm.lm, DebiasedLM):
                raise RagBiasError("explain=False needs a local model, because servers do not restrict the next tokens")
            self._settings = {"prefix_allowed_tokens_fn": allow_only(VERDICTS, llm.lm.tokenizer)}
        _check_template(self._eval_template)
        method = methods.get(llm.method, llm.lm.name)
        if llm.document_cache is not None and method.reusable_documents:
            warn(
                f"{method.name} computes the two answers separately, but a judge has to compare them; use a method "
                "whose documents attend to each other, such as pine, without a document cache",
                DocumentCacheWarning,
            )

    def evaluate(self, *args: Any, **kwargs: Any) -> EvaluationResult:
        """Like ``aevaluate``, but blocking. LlamaIndex's version would replace a ``RagBiasError`` by another error."""

        async def result_or_error() -> EvaluationResult | RagBiasError:
            try:
                return await self.aevaluate(*args, **kwargs)
            except RagBiasError as error:
                return error

        result: EvaluationResult | RagBiasError = asyncio_run(result_or_error())
        if isinstance(result, RagBiasError):
            raise result
        return result

    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        second_response: str | None = None,
        reference: str | None = None,
        sleep_time_in_seconds: int = 0,
        **kwargs: Any,
    ) -> EvaluationResult:
        """Compare two answers. Score 1.0: ``response`` is better; 0.0: ``second_response`` is better; 0.5: a tie."""
        if query is None or response is None or second_response is None:
            raise ArgumentError("query, response or second_response is None; give all three")
        await asyncio.sleep(sleep_time_in_seconds)
        if response == second_response:
            return EvaluationResult(query=query, score=0.5, feedback="the answers are equal")
        answers = (response, second_response)
        result = await self._compare(query, answers, reference, exchange=False)
        if result.invalid_result or not self._enforce_consensus:
            return result
        second = await self._compare(query, answers, reference, exchange=True)
        return second if second.invalid_result else _consensus(result, second)

    async def _compare(
        self, query: str, answers: tuple[str, str], reference: str | None, exchange: bool
    ) -> EvaluationResult:
        digests = [hashlib.sha256(answer.encode()).digest() for answer in answers]
        first_is_a = (digests[0] < digests[1]) != exchange
        labels = "AB" if first_is_a else "BA"
        labelled = zip(labels, answers, strict=True)
        documents = [self._answer_template.format(label=label, answer=answer) for label, answer in labelled]
        text = await self._prompt_judge(documents, query=query, reference=reference or "")
        passing, score, feedback = self._parser_function(text)
        if passing is None and score is None and feedback is None:
            return EvaluationResult(
                query=query, invalid_result=True, invalid_reason="Output cannot be parsed", feedback=text
            )
        if not first_is_a:  # the parser's result is about A
            passing = None if passing is None else not passing
            score = None if score is None else 1 - score
        return EvaluationResult(
            query=query,
            response=text,
            passing=passing,
            score=score,
            feedback=text,
            pairwise_source=EvaluationSource.FLIPPED if exchange else EvaluationSource.ORIGINAL,
        )

    async def _prompt_judge(self, documents: list[str], **values: str) -> str:
        llm = self._judge
        template = self._eval_template
        values |= {"answer_1": documents[0], "answer_2": documents[1]}
        call = {"documents": documents, **self._settings}
        if llm.metadata.is_chat_model:
            reply = await llm.achat(template.format_messages(llm=llm, **values), **call)
            text = reply.message.content or ""
            report = reply.additional_kwargs["ragbias"]
        else:
            completion = await llm.acomplete(template.format(llm=llm, **values), **call)
            text = completion.text
            report = completion.additional_kwargs["ragbias"]
        if report["method_ran"] != report["method_requested"]:
            raise RagBiasError(
                f"{report['method_requested']} did not run on the two answers ({report['reason']}), so the verdict "
                "may depend on their order; use templates that print the answers unchanged"
            )
        return text


def _consensus(first: EvaluationResult, second: EvaluationResult) -> EvaluationResult:
    """Combine two verdicts. If one is a tie, return the other one. If they prefer different answers, return a tie."""
    assert first.score is not None
    assert second.score is not None
    if first.score == second.score or second.score == 0.5:
        return first
    if first.score == 0.5:
        return second
    return EvaluationResult(
        query=first.query, response="", score=0.5, feedback="", pairwise_source=EvaluationSource.NEITHER
    )


def _check_template(template: BasePromptTemplate) -> None:
    texts: list[str] = [template.template] if isinstance(template, PromptTemplate) else []
    if isinstance(template, ChatPromptTemplate):
        texts = [message.content or "" for message in template.message_templates]
    for text in texts:
        _, found, after = text.partition("{answer_1}")
        if found and after.partition("{answer_2}")[0].strip():
            raise RagBiasError(
                "the eval_template has text between {answer_1} and {answer_2}, which would reveal their order; "
                "give labels in answer_template, e.g. " + repr(ANSWER_TEMPLATE)
            )
