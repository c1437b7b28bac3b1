"""Finding the texts of known documents in a prompt, and choosing which occurrence is which document."""
