"""How large each number may be that a command line, a settings file or a data class of an evaluation takes.

The upper ends are far beyond what any run needs. They are there so that a slip of the finger is told at once, and not
by a machine without memory.
"""

from ragbias.checks import Bounds

SEED = Bounds(0, 2**32 - 1)  # as numpy takes them

CHUNKS = Bounds(1, 1_000)
NEW_TOKENS = Bounds(1, 100_000)
AUDIT_ORDERS = Bounds(2, 1_000)
DEMO_QUESTIONS = Bounds(2, 10_000)

QUESTIONS = Bounds(1, 10_000_000)  # of a file
DOCUMENTS = Bounds(1, 10_000)
POSITIONS = Bounds(0, DOCUMENTS.most - 1)
ORDERS = Bounds(1, 1_000)
WORDS = Bounds(5, 100_000)  # of a passage
BATCH = Bounds(1, 1_024)
WORKERS = Bounds(1, 1_024)

LAYERS = Bounds(1, 1_000)
TOKENS = Bounds(1, 1_000_000)  # of a document
PREFIX = Bounds(0, 1_000_000)  # tokens before the documents
TOTAL_TOKENS = Bounds(1, 10_000_000)
ROUNDS = Bounds(1, 1_000)
STEPS = Bounds(1, 10_000)

STRINGS = Bounds(1, 1_000_000)
STRING_LENGTH = Bounds(20, 1_000_000)  # the least leaves more points to fit and smooth than a cubic has coefficients
DRAWN_QUESTIONS = Bounds(1, 100_000)
DRAWN_DOCUMENTS = Bounds(2, 10_000)
DEPTHS = Bounds(1, 1_000)
