"""Every way to run a target across a WAN, side by side over the same models, prompts and emulated network."""
