"""AceSpec Edge: the device side of speculative decoding across a WAN."""
