"""From a prompt to an answer: arguments, request, decoding, scoring, voting, and the report of what ran."""
