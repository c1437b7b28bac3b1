from . import adaptation as adaptation
from . import attention as attention
from . import binding as binding
from . import boundaries as boundaries
from . import cache as cache
from . import errors as errors
from . import frameworks as frameworks
from . import generation as generation
from . import methods as methods
from . import prompt as prompt
from .adaptation.run import adapt as adapt
from .binding.hooks import debias as debias
from .boundaries import documents as documents
from .cache import DocumentCache as DocumentCache
from .errors import RagBiasError as RagBiasError
from .generation.ranking import rank as rank
from .generation.request import Generation as Generation
from .generation.request import Report as Report
from .generation.request import Score as Score
from .lm import DebiasedLM as DebiasedLM
from .prompt import Prompt as Prompt

__version__: str
