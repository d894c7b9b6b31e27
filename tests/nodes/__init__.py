"""One agent per node: image, chart and service, each with the tools that operators use for it, as far as they run here."""
