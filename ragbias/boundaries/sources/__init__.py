"""Who knows the documents: the user (``named``, ``segmenter``), the recent retrievals (``registry``, searched by
``registry_search``), or the prompt itself (``numbered_headers``).
"""
