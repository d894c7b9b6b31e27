"""Tests the deployments, image, chart and service, with the tools that operators use for them."""
