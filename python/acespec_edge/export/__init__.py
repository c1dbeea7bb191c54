"""Turns a model into a draft bundle. Nothing else imports this package, and it needs no PyTorch."""
