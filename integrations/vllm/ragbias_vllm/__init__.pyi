from .connector import RagBiasConnector as RagBiasConnector
