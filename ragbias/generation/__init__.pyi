from ragbias.generation.arguments import GenerationArguments as GenerationArguments
from ragbias.generation.arguments import GenerationSettings as GenerationSettings
from ragbias.generation.request import Generation as Generation
from ragbias.generation.request import Report as Report
from ragbias.generation.request import Request as Request
from ragbias.generation.request import Score as Score
from ragbias.generation.request import Usage as Usage
from ragbias.generation.streaming import Stream as Stream
