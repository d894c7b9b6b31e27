"""Conversations of real clients with a real broker, recorded once, and what the decoder makes of all of it."""
