"""Analysis of finished runs: comparisons, verdicts, genotypes and new clients."""
