"""The theory behind the algorithm: the generalized eluder dimension and the guarantees."""
