from ragbias import adaptation as adaptation
from ragbias import attention as attention
from ragbias import binding as binding
from ragbias import boundaries as boundaries
from ragbias import cache as cache
from ragbias import errors as errors
from ragbias import frameworks as frameworks
from ragbias import generation as generation
from ragbias import methods as methods
from ragbias import prompt as prompt
from ragbias.adaptation.run import adapt as adapt
from ragbias.binding.hooks import debias as debias
from ragbias.boundaries import documents as documents
from ragbias.cache import DocumentCache as DocumentCache
from ragbias.errors import RagBiasError as RagBiasError
from ragbias.generation.ranking import rank as rank
from ragbias.generation.request import Generation as Generation
from ragbias.generation.request import Report as Report
from ragbias.generation.request import Score as Score
from ragbias.lm import DebiasedLM as DebiasedLM
from ragbias.prompt import Prompt as Prompt

__version__: str
