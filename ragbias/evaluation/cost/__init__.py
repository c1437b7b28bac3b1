"""Time and memory of methods beside plain attention, and beside the limits of their arithmetic."""
