"""Fig. 11, Fig. 12 and the claims."""
