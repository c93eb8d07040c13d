"""The same three ways to run a sketch, for the hash without tables (permutation.py).

Given one vector, all three give one table to the last bit: a cell is the float32 sum of its
coordinates, one after another in order of index, which both a loop over the vector and a loop over
the groups of a cell can follow.
"""
