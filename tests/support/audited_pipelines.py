"""Questions for audits, and pipelines that answer them from retrieved documents."""

from audit_questions import question_lines
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from langchain_ragbias import ChatRagBias
from ragbias.data.questions import Question
from ragbias.data.retrieval import SYSTEM_PROMPT

LINES = question_lines(2, documents=6)
QUESTIONS = [Question(line["question"]) for line in LINES]
TEXTS = {line["question"]: line["documents"] for line in LINES}
PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM_PROMPT + "{context}"), ("human", "{input}")])


def retrieve(question):
    return [Document(text) for text in TEXTS[question]]


def joined(documents):
    return "\n\n".join(document.page_content for document in documents)


def chain(llm):
    context = RunnableLambda(lambda values: values["input"]) | RunnableLambda(retrieve) | joined
    return RunnablePassthrough.assign(context=context) | PROMPT | llm


def chat(tiny, **settings):
    return ChatRagBias(lm=tiny, method="none", max_tokens=8, segmenter="\n\n", **settings)


class Unframed:
    """A pipeline without a framework."""

    def __init__(self, lm):
        self.lm = lm

    def __call__(self, question):
        text = "Context:\n\n" + "\n\n".join(TEXTS[question]) + f"\n\nQuestion: {question}\nAnswer:"
        return self.lm.generate(text, documents=TEXTS[question], max_new_tokens=5, method="pine").text
