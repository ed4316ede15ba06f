"""Freed memory is kept for reuse, or returned to the system."""

import subprocess
import sys

import pytest

from fedkd_flwr import heap

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the C library is Linux's")

FAULTS = """
import resource
import torch
from fedkd_flwr.heap import keep_free_memory, return_free_memory

{first}

def step():
    torch.ones(2**24)  # 64 MB

for _ in range(10):  # until nothing small is left to be put into the hole
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    {each}
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str, each: str) -> int:
    """Return how many pages a process had to get from the system for five equal steps."""
    code = FAULTS.format(first=first, each=each)
    command = [sys.executable, "-c", code]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


@on_linux
def test_freed_memory_is_reused_in_the_next_step():
    assert faults("keep_free_memory()", "pass") < 100


@on_linux
def test_by_default_the_allocator_returns_memory_after_each_step():
    assert faults("pass", "pass") > 100


@on_linux
def test_returned_memory_is_requested_again():
    assert faults("keep_free_memory()", "return_free_memory()") > 100


def test_a_system_without_such_a_library_is_not_asked_for_it(monkeypatch):
    asked = []
    monkeypatch.setattr(heap.ctypes, "CDLL", asked.append)
    monkeypatch.setattr(sys, "platform", "win32")
    heap.keep_free_memory.__wrapped__()
    heap.return_free_memory()
    assert not asked
