"""From texts to occurrences in the prompt: every occurrence of a text, which occurrence is which document
(``assignment``), the documents that a formatter rewrote (``rewritten``), and the one that the edge of the context cut
off (``truncated``). ``prefilter`` spares searching for the many texts that a prompt does not hold.
"""
