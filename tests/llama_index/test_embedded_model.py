"""The embedded model answers from an index without a download."""

from llama_index.llms.ragbias import RagBiasLLM

from ragbias.models.tiny.world import held_out_questions


def test_the_embedded_model_answers_from_the_index(index, corpus):
    llm = RagBiasLLM(model_name="tiny", max_new_tokens=16)
    engine = index.as_query_engine(llm=llm, similarity_top_k=5)
    questions = held_out_questions(corpus, 8, seed=0)
    right = sum(item.answer.lower() in str(engine.query(item.question)).lower() for item in questions)
    assert llm.last_report is not None
    assert llm.last_report["method_ran"] == "pine"
    assert right >= 4
