"""From located documents to segments: the context, separators, headers, metadata and numbering."""
