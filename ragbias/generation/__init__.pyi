from ragbias.generation.arguments import GenerationArguments as GenerationArguments
from ragbias.generation.arguments import GenerationSettings as GenerationSettings
from ragbias.generation.report import Generation as Generation
from ragbias.generation.report import Report as Report
from ragbias.generation.report import Score as Score
from ragbias.generation.report import Usage as Usage
from ragbias.generation.request import Request as Request
from ragbias.generation.streaming import Stream as Stream
