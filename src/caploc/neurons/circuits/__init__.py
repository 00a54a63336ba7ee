"""Knowledge circuits: the edges between heads and feed-forward blocks that carry a fact."""
