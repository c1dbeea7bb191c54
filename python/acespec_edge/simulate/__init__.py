"""A virtual-time simulator: recorded models, modelled devices and network, the real speculation code."""
