from .arguments import CallArguments as CallArguments
from .base import RagBiasOptions as RagBiasOptions
from .chat_models import ChatRagBias as ChatRagBias
from .listener import MissingDocumentsWarning as MissingDocumentsWarning
from .listener import install_listener as install_listener
from .listener import uninstall_listener as uninstall_listener
from .llms import RagBiasPipeline as RagBiasPipeline
from .warming import warm as warm
