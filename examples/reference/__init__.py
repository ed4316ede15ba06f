"""The four papers in plain loops, for reading; tests hold the product to them.

uv run python -m examples.reference

A reference has the paper's symbols, no framework, and no method of the product. Data, networks and
random draws are the product's, so that both compute the same numbers.
"""
