"""Frames as people read them: joined from samples, described in words, and in their order as a conversation."""
