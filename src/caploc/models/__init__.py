"""Models: load one, find and prove its heads, knock them out."""
