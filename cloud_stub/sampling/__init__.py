"""The request's rules in PyTorch, for logits that stay on their device; the service uses the native ones."""
