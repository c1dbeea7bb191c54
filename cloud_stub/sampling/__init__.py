"""The request's rules in PyTorch, for logits that stay on their device: only the chosen ids come back."""
