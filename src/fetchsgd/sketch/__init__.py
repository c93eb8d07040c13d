"""The Count Sketch (appendix C of the paper).

hashing.py says where a coordinate goes, count_sketch.py is the operator that users hold, and
kernels/ does the work on each kind of device.
"""

from fetchsgd.sketch.count_sketch import CountSketch, Table

__all__ = ["CountSketch", "Table"]
