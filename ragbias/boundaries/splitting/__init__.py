"""From occurrences to segments: which documents are the context, and what around each belongs to it.

Which occurrences are this turn's: ``current_turn``, from the ``messages`` of a prompt, the ``blocks`` of documents in
each (``document_groups`` of ``outermost`` occurrences), and which of them are later ``turns`` or quotes. Which of a
message's documents are its context: ``context_selection``. What is between two documents is split in two ways:
``metadata_blocks`` where the documents' metadata are known and printed around them, else ``headers_and_separators``,
from the text alone. ``numbering`` strips the numbers that tell the order.
"""
