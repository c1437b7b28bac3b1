"""Where the retrieved documents are known from: named, remembered, found by a segmenter or by their headers."""
