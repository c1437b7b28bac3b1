"""From occurrences to segments: which documents are the context, and what around each belongs to it.

Which documents form one context: ``document_groups``, and of several the right one: ``context_selection``. What is
between two documents is split in two ways: ``metadata_blocks`` where the documents' metadata are known and printed
around them, else ``headers_and_separators``, from the text alone. ``numbering`` strips the numbers that tell the order.
"""
