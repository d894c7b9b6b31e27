"""Replays recorded conversations of real clients with a real broker, and checks what the decoder reads."""
