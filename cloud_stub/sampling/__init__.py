"""The request's rules where the target's logits are: the native ones for rows in memory, a twin in PyTorch for
rows on a device, of which only the chosen ids come back.
"""
