"""Who reads which format, and what a stranger hears who hands in the wrong thing."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from wire.messages import one_of_each

from fetchsgd.wire import (
    Coding,
    DenseVector,
    Floats,
    Integers,
    Reader,
    SketchTable,
    SparseUpdate,
    Values,
    WholeModel,
    WireError,
    decode,
    encode,
    header,
    num_bytes,
    register_section,
    values,
)

F = Floats(torch.zeros(2))
AT = torch.tensor([0, 1])
ALLOWED = "must be Floats, Integers or what a quantiser made, not"
MISTAKES = [
    (lambda: DenseVector(torch.zeros(2)), f"DenseVector {ALLOWED} Tensor; Floats\\(tensor\\)"),
    (lambda: WholeModel(np.zeros(2)), f"WholeModel {ALLOWED} ndarray$"),
    (lambda: SketchTable(5, 1, 2, 1, 0, [0.0, 1.0]), f"SketchTable {ALLOWED} list$"),
    (lambda: SparseUpdate(5, AT, torch.zeros(2)), f"SparseUpdate {ALLOWED} Tensor; Floats"),
    (lambda: SparseUpdate(5, [0, 1], F), "indices must be a tensor of int64, not list"),
    (lambda: SparseUpdate(5, AT.numpy(), F), "indices must be a tensor of int64, not ndarray"),
    (lambda: DenseVector(F, 1.5), "round must be a whole number, not 1.5"),
    (lambda: DenseVector(F, None), "round must be a whole number, not None"),
    (lambda: SketchTable("5", 1, 2, 1, 0, F), "dim must be a whole number, not '5'"),
    (lambda: Floats(np.zeros(2)), "Floats takes a tensor of float32, .* not ndarray"),
    (lambda: Floats([0.0]), "Floats takes a tensor of float32, .* not list"),
    (lambda: Integers(np.zeros(2, dtype=np.int64)), "Integers takes a tensor of int64, not nd"),
    (lambda: encode(torch.zeros(2)), "encode takes a DenseVector, .* or WholeModel, not Tensor"),
    (lambda: encode(F), "encode takes a DenseVector, .* or WholeModel, not Floats"),
    (lambda: encode(None), "encode takes a DenseVector, .* or WholeModel, not NoneType"),
    (lambda: num_bytes(np.zeros(2)), "num_bytes takes a DenseVector, .*, not ndarray"),
    (lambda: decode("text"), "a message is bytes, a bytearray or a memoryview .*, not str"),
    (lambda: decode(None), "a message is bytes, .*, not NoneType"),
    (lambda: decode([1, 2]), "a message is bytes, .*, not list"),
    (lambda: decode(memoryview(bytes(80))[::2]), "a memoryview without gaps"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "sentence"), MISTAKES)
def test_wrong_types_get_a_sentence(make, sentence):
    with pytest.raises(TypeError, match=sentence):
        make()


def test_numbers_of_numpy_are_numbers():
    assert encode(DenseVector(F, np.int64(3))) == encode(DenseVector(F, 3))


def test_floats_and_integers_are_values():
    assert isinstance(F, Values)
    assert isinstance(Integers(AT), Values)
    assert Integers(AT).floats().tolist() == [0.0, 1.0]
    halves = Floats(torch.ones(2).bfloat16())
    assert halves.floats().dtype == torch.float32


def read_nothing(reader: Reader, format: int, count: int) -> tuple[Values, Coding]:
    return F, Coding(format)


def read_other(reader: Reader, format: int, count: int) -> tuple[Values, Coding]:
    return F, Coding(format)


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(values, "_READERS", dict(values._READERS))


@pytest.mark.usefixtures("registry")
class TestRegistry:
    def test_a_format_has_one_reader(self):
        register_section(0xF1, read_nothing)
        register_section(0xF1, read_nothing)
        with pytest.raises(ValueError, match="0xf1 is taken by .*read_nothing"):
            register_section(0xF1, read_other)

    @pytest.mark.parametrize("format", [1, 4, 0x12, 0x50, 0xEF, 0x100])
    def test_formats_of_the_package_are_not_free(self, format):
        with pytest.raises(ValueError, match="outside the package take one from 0xf0 to 0xff"):
            register_section(format, read_nothing)

    def test_a_reader_must_give_as_many_values_as_the_header_says(self):
        register_section(0xF1, read_nothing)
        head = header.Header(header.DENSE, 0xF1, 0, 0, 0, 3, 0, 0, 0, 3)
        with pytest.raises(WireError, match="there are 2 values, but the header says 3"):
            decode(header.write(head, []))

    def test_a_format_of_nobody(self):
        head = header.Header(header.DENSE, 0xF2, 0, 0, 0, 3, 0, 0, 0, 3)
        with pytest.raises(WireError, match="0xf2: import the quantiser that writes it"):
            decode(header.write(head, []))


def test_quantised_cells_are_read_without_importing_their_quantiser():
    """And the wire stands on its own: neither quantisers nor the sketch come with it."""
    code = """
import sys
from fetchsgd.wire import decode
above = [name for name in sys.modules if name.startswith(("fetchsgd.quant", "fetchsgd.sketch"))]
assert not above, above
message = decode(bytes.fromhex(sys.argv[1]))
assert type(message.values).__module__ == "fetchsgd.quantisers.levels"
"""
    message = one_of_each()["packed-4"].hex()
    subprocess.run([sys.executable, "-c", code, message], check=True, timeout=60)
