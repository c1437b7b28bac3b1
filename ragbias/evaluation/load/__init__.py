"""Load on servers: requests per second, and how long clients wait."""
