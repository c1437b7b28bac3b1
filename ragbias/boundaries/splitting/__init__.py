"""From occurrences to segments: which documents are the context, and what around each belongs to it.

Which occurrences are this turn's: ``current_turn``, from the ``messages`` of a prompt, the ``blocks`` of documents in
each (``document_groups``, of occurrences that are ``outermost``), and which are later ``turns`` or quotes. Which of a
message's documents are its context: ``context_selection``. What is between two documents is split in two ways: by
``metadata_blocks`` where the documents' metadata are known and printed around them, else from the text alone, by
``headers_and_separators``; ``segments`` are the parts. ``numbering`` sees and strips what counts with the position: of
the ``number_candidates`` (``counters`` and what is around them) each ``number_series``, by ``number_cuts``.
"""
