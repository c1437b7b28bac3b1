from .arguments import GenerationArguments as GenerationArguments
from .arguments import GenerationSettings as GenerationSettings
from .request import Generation as Generation
from .request import Report as Report
from .request import Request as Request
from .request import Score as Score
from .request import Usage as Usage
from .streaming import Stream as Stream
