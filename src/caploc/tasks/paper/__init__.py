"""The papers' own tasks that lm-eval lacks."""
