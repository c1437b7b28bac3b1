from . import primitive as primitive
from .keys import Encoding as Encoding
from .keys import Scoring as Scoring
from .primitive import BACKENDS as BACKENDS
from .primitive import attend as attend
from .torch_backend import merge as merge
from .torch_backend import segment_scores as segment_scores
