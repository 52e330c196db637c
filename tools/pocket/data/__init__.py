"""Data generators of the pocket model: every item is a function of (split, seed, index).

A generator is a function ``make(stream: Stream, ...) -> Sample``. A ``Stream`` is one item's own
random source; ``stream(split, name, seed, index)`` makes it. The held-out split has other random
draws, and where a generator has a pool (fonts, voices, backgrounds, word list) it draws from the
pool's held-out part.
"""
