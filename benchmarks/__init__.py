"""Benchmarks that compare costs with a reference: ``python -m benchmarks``.

Seconds depend on the machine. Each benchmark therefore times two tasks alternately, in one process
on one machine, and targets are set on their ratio. Everything runs on one thread. A figure is the
median of five repetitions, unless its module says otherwise.
"""
