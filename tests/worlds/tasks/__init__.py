"""The tasks that the demo model was trained for."""
