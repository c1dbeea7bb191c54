"""DLite (arXiv:2610.23787): a draft head beside the target that keeps no history of its own."""
