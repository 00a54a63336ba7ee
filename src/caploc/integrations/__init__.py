"""caploc's models inside other evaluation frameworks: knocked out, and answered by its engine."""
