"""Decodes the Kafka protocol: takes bytes that the kernel copied and returns facts.

It does no I/O. Invalid bytes give a status, never an exception.
"""
