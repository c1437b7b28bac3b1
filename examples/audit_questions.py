"""Writes ``audit_questions.jsonl``: questions about the embedded model's world, for ``ragbias audit`` and ``inspect``.

The entities are held out from the model's training, the document with the answer stands at a random place.
"""

import json
import random
from pathlib import Path

from ragbias.tiny.evaluate import cases

QUESTIONS, DOCUMENTS, SEED = 30, 20, 0

rng = random.Random(SEED)
lines = []
for question, passages in cases(DOCUMENTS, QUESTIONS, SEED):
    passages.insert(rng.randrange(DOCUMENTS), question.gold)
    documents = [f"{passage.title}\n{passage.text}" for passage in passages]
    lines.append({"question": question.question, "documents": documents, "answer": question.answer})
path = Path(__file__).with_suffix(".jsonl")
path.write_text("".join(json.dumps(line) + "\n" for line in lines))
print(f"Written: {path}")
