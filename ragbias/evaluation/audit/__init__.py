"""Does a pipeline's answer depend on the order of its documents? Measured without labels; see ``docs/audit.md``."""

from ragbias.evaluation.audit.asking import Subject, from_questions
from ragbias.evaluation.audit.measuring import Audit, Outcome, audit
from ragbias.evaluation.audit.pipeline import from_pipeline, load_pipeline
from ragbias.evaluation.audit.verdict import Verdict, recommendation, verdict

__all__ = [
    "Audit",
    "Outcome",
    "Subject",
    "Verdict",
    "audit",
    "from_pipeline",
    "from_questions",
    "load_pipeline",
    "recommendation",
    "verdict",
]
