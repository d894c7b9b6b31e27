"""Long runs: what only shows after very many connections."""
