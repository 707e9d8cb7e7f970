"""The Perceiver-Actor-Critic: encoders -> perceiver -> decoders, wired in `pac.py`."""

from pac.model.pac import PAC, Encoded

__all__ = ["PAC", "Encoded"]
