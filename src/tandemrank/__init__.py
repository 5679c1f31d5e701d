"""TandemRank."""
