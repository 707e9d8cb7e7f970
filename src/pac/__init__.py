"""PAC: a Perceiver-Actor-Critic trained from offline data."""

__version__ = "0.1.0"
