"""Work is handed out in order, on systems with and without fork."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from fetchsgd import threads


def loaded_again():
    """A fresh copy of the module, as a new process would load it."""
    spec = importlib.util.spec_from_file_location("threads_again", Path(threads.__file__))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pool_is_forgotten_in_a_forked_child(monkeypatch):
    seen = {}
    monkeypatch.setattr(os, "register_at_fork", seen.update, raising=False)
    module = loaded_again()
    first = module._pool(2)
    seen["after_in_child"]()
    assert module._pool(2) is not first


def test_a_system_without_fork(monkeypatch, restore_threads):
    """Windows has no os.register_at_fork."""
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    module = loaded_again()
    torch.set_num_threads(2)
    assert list(module.run_in_order(abs, range(-50, 0), 10**9)) == list(range(50, 0, -1))


@pytest.mark.parametrize("number", [1, 3])
def test_results_come_in_the_order_of_the_tasks(number, restore_threads):
    torch.set_num_threads(number)
    squares = threads.run_in_order(lambda x: x * x, range(200), 10**9)
    assert list(squares) == [x * x for x in range(200)]


def test_an_error_in_a_task_reaches_the_caller(restore_threads):
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        list(threads.run_in_order(lambda x: 1 // x, range(-3, 3), 10**9))
