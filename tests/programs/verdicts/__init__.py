"""Causes every kind of disconnect that the product names, and keeps the truth for comparison."""
