"""Train reader adapters: a small LoRA on the tokens after the documents, see ``ragbias.readers``."""

from ragbias.adaptation.run import adapt as adapt
from ragbias.adaptation.settings import AdaptSettings as AdaptSettings
