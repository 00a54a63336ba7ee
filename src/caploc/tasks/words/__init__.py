"""Few-shot tasks for pretrained models: inflection, facts, translation, sequences, sums."""
