"""Prompts that an evaluation makes by itself: questions with one gold document, random strings, the stock prompt."""
