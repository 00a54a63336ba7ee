"""What neuron studies found, as tables and figures."""
