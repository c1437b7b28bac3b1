from ragbias.binding.architectures import ARCHITECTURES as ARCHITECTURES
from ragbias.binding.architectures import Architecture as Architecture
