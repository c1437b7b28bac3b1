"""From a prompt to an answer: arguments, requests, decoding, scoring, voting, and the report of what ran."""
