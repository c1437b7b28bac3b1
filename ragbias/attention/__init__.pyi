from ragbias.attention import keys as keys
from ragbias.attention import primitive as primitive
from ragbias.attention import torch_backend as torch_backend
from ragbias.attention.keys import Encoding as Encoding
from ragbias.attention.keys import Scoring as Scoring
from ragbias.attention.primitive import attend as attend
from ragbias.attention.torch_backend import merge as merge
from ragbias.attention.torch_backend import segment_scores as segment_scores
