"""The OpenAI-compatible server on this device: HTTP in front of an EdgeRuntime."""
