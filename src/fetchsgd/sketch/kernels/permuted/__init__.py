"""The same three ways to run a sketch, for the hash without tables (permutation.py).

Given one vector, all three give one table to the last bit. Sums are float32: those coordinates of a
cell that are in the first half of the groups, one after another in order of index, then those in
the second half, then both together. A loop over the vector and a loop over the groups of a cell can
both do this, and two threads can share a row.
"""
