"""Which symbols of chunks may share a table, and how fine tables are: what a writer tries.

Classes of chunks share a table with their neighbours: 45 groups. Pages are ordered by how large
their values are, into eight kinds, and kinds share a table by one, two, four or eight.
"""

from fetchsgd.wire.chunk_loops import CLASSES

GROUPS = [(a, b) for b in range(1, CLASSES + 1) for a in range(b)]
# By how many tables kinds of pages may be told apart.
TABLES = (1, 2, 4, 8)
# Fine tables pay where there is much to code, short ones where there is little: the precision is
# the first number plus the third for every bound of nonzeros that is reached.
PRECISION_FROM = 8, (6_000, 150_000), 3
# Precision, groups, and the number of tables of values.
HEAD_BYTES = 3
# A table that has nothing to say: one frequency.
LEAST_TABLE = 2.0
# Kinds of pages are at least an eighth of an octave wide.
LEAST_WIDTH = 1 / 8
