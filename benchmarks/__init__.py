"""What this project costs beside something known, as ratios: ``python -m benchmarks``.

Seconds say more of a machine than of a program. Each benchmark therefore measures two things in
turns, in one run on one machine, and what is held to a target is their ratio. All of it runs on
one thread. Each figure is a median of five, where its module does not say otherwise.
"""
