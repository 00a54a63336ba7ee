"""The heads paper's own tasks: swearing, rhyming, and the mean of its general benchmarks."""
