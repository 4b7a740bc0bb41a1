"""What is measured: ours beside its peers, in one run, as ratios."""
