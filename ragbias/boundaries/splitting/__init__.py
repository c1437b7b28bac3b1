"""From occurrences to segments: this turn's message, headers and footers, numbering, and the parts of the prompt."""
