"""What tests and benchmarks measure against: outcomes and models whose truth is known."""
