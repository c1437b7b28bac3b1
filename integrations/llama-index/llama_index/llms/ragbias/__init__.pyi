from .arguments import MissingDocumentsWarning as MissingDocumentsWarning
from .arguments import RagBiasLLMOptions as RagBiasLLMOptions
from .base import RagBiasLLM as RagBiasLLM
from .judge import PairwiseJudge as PairwiseJudge
from .listener import install_listener as install_listener
from .listener import uninstall_listener as uninstall_listener
from .warming import WarmDocuments as WarmDocuments
from .warming import warm as warm
