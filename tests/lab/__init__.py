"""The lab: a real broker, real clients in cgroups of their own, and counts taken independently of the product."""
