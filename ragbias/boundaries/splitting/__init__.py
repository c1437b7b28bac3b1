"""From occurrences to segments: which documents are the context (``context_selection``), and what around each belongs
to it: its metadata, headers and footers, but no separator. ``numbering`` strips the numbers that tell the order.
"""
