"""From a prompt to an answer: arguments, request, joining, decoding, scoring, voting, and the report of what ran."""
