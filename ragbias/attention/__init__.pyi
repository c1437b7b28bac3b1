from ragbias.attention import keys as keys
from ragbias.attention import primitive as primitive
from ragbias.attention.keys import Encoding as Encoding
from ragbias.attention.keys import Scoring as Scoring
from ragbias.attention.primitive import attend as attend
from ragbias.attention.primitive import merge as merge
from ragbias.attention.primitive import segment_scores as segment_scores
