"""What finished runs say: comparisons, verdicts, genotypes, and clients that come later."""
