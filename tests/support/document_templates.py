"""Chat templates that render documents, as Granite's and Command R's do, and one that ignores them."""

import copy

from ragbias import DebiasedLM
from support.scripted import RecordingLM

GATES = {"Falcon": "The gate of the station is red.", "Ivory": "The gate of the bridge is blue.", "Zoo": "Owls sleep."}
TURNS = (
    "{% for m in messages %}<|{{ m.role if m.role in ('system', 'user', 'assistant') else 'user' }}|>\n"
    "{{ m.content }}\n{% endfor %}<|assistant|>\n"
)
GRANITE = (
    "{% if documents %}<|system|>\n{% for document in documents %}Document {{ loop.index0 }}\n{{ document.text }}\n\n"
    "{% endfor %}\n{% endif %}" + TURNS
)
TURN_EACH = "{% for document in documents or [] %}<|user|>\n{{ document.content }}\n{% endfor %}" + TURNS
COMMAND_R = (
    "<|system|>\n{% if documents %}<results>\n{% for document in documents %}Document: {{ loop.index0 }}\n"
    "{% for key, value in document.items() %}{{ key }}: {{ value }}\n{% endfor %}\n{% endfor %}</results>{% endif %}\n"
    + TURNS
)


def recording(lm: DebiasedLM, template: str) -> RecordingLM:
    """The model with another chat template; it records its prompts."""
    tokenizer = copy.deepcopy(lm.tokenizer)
    tokenizer.chat_template = template
    return RecordingLM(DebiasedLM(lm.model, tokenizer, strip_numbering=True))
