"""Tune chosen neurons alone, and find out what that does that tuning others does not."""
