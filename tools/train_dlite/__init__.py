"""Trains DLite heads: texts by the target, its hidden states along them, the head, its acceptance."""
