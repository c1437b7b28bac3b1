from .architectures import ARCHITECTURES as ARCHITECTURES
from .architectures import Architecture as Architecture
from .architectures import encodings_of as encodings_of
from .architectures import has_fixed_encodings as has_fixed_encodings
