from .architectures import ARCHITECTURES as ARCHITECTURES
from .architectures import Architecture as Architecture
