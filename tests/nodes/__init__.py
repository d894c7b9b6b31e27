"""One agent per node: image, chart and service, in the hands of the tools that operators use for them."""
