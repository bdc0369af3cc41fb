"""Every number of the library as a pure torch function: one equation, one function, arguments in, value out.

Axes: ``actions`` (tokens the policy chose, back to back), ``sequences``, ``pairs``, ``vocab``. A ragged axis comes with
its offsets, int64 [pieces + 1]. Losses are returned per item and never averaged: sums and counts travel, the mean is
taken once, by the global count. Statistics are computed in float64; results are float32, or float64 for float64 input.
"""
