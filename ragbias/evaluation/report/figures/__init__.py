"""Pictures of position bias, from the aggregates of a bench; readable without colour.

Methods are told apart by line style, marker and filling, and each is named in its panel or in a legend.
"""

from ragbias.extras import required

required("matplotlib", "bench")
