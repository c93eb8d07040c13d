"""Compiles Triton programs for a GPU that is not there; test_launch.py runs it as a process.

The interpreter runs what a compiler refuses, such as a variable of a loop that changes its type.
Here every launch is compiled for Hopper, down to machine code, and not run; so only what does not
depend on results is called.
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
OPTIONS = ("num_warps", "num_stages", "maxnreg")
POINTERS = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16",
    torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8",
    torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip
compiled = set()


def type_of(value):
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def compile_launch(program, _grid, *arguments, **constants):
    options = {name: constants.pop(name) for name in OPTIONS if name in constants}
    given = dict(zip(program.arg_names, arguments, strict=False)) | constants
    fixed = {p.name for p in program.params if p.is_constexpr}
    signature, values = {}, {}
    for parameter in program.params:
        name = parameter.name
        value = given.get(name, parameter.default)
        if name in fixed or value is None:
            signature[name], values[name] = "constexpr", value
        else:
            signature[name] = type_of(value)
    triton.compile(ASTSource(program, signature, values), target=HOPPER, options=options)
    compiled.add(program.__name__)


def replace_launches():
    from fetchsgd.launch import launch

    for name, module in list(sys.modules.items()):
        if name.startswith("fetchsgd") and getattr(module, "launch", None) is launch:
            module.launch = compile_launch


def sizes_of_chunks():
    from fetchsgd.wire import chunk_cuda, chunk_sizes, chunk_sizes_cuda
    from fetchsgd.wire.chunk_statistics import chunk_statistics

    replace_launches()
    levels = torch.zeros(2, 100_000, dtype=torch.int8)
    levels[:, ::50] = 1
    found = chunk_statistics(levels)
    cpu = torch.device("cpu")
    chunk_sizes_cuda.sparse_bytes(found, chunk_sizes.rank_bits(cpu), chunk_sizes.extra_bits_of(cpu))
    chunks = torch.zeros(2, 1563, dtype=torch.uint8)
    larger = torch.zeros(2, dtype=torch.int64)
    for dtype in (torch.int8, torch.int16, torch.int32):
        chunk_cuda.count_rows(levels.to(dtype), chunks, found.values.clone(), larger)
    chunk_cuda.count_segments(chunks, found.counts.clone(), found.nonzeros.clone())


def quantisers():
    from fetchsgd.quantisers.kernels import cuda

    replace_launches()
    cells, clients = torch.zeros(2, 5000), torch.arange(2)
    cuda.add_squares(cells)
    for dtype in (torch.int8, torch.int16, torch.int32):
        cuda.round_places(cells, torch.ones(2), dtype, 5, clients)
        cuda.sum_levels(torch.zeros(2, 5000, dtype=dtype), torch.ones(2))
    for bits in (2, 4, 8):
        scales, symbols = cuda.quantise(cells, bits, 5, clients)
        cuda.weighted_sum(scales, symbols, bits, 5000, torch.ones(2))
        cuda.histograms(symbols)
    cuda.round_to_bfloat16(cells, 5, clients)


def sketches():
    from fetchsgd.sketch.kernels.permuted import cuda
    from fetchsgd.sketch.permutation import Permutation

    replace_launches()
    for rows, block in ((1, 16), (3, 4)):
        kernels = cuda.PermutedTriton(Permutation(10_000, rows, 960, block, 7), torch.device("cpu"))
        kernels.sketch([torch.zeros(2, 10_000)])
        table, some = torch.zeros(rows, 960), torch.arange(50)
        kernels.estimate(table)
        kernels.estimate(table, range(17, 9001))
        kernels.sketch([torch.zeros(1, 5000)], 3000)
        kernels.query(table, some)
        kernels.scatter(some, torch.ones(50))
        kernels.touched(some, torch.ones(50))
    for rows, block in ((5, 64), (2, 4)):
        kernels = cuda.PermutedTriton(Permutation(10_000, rows, 960, block, 7), torch.device("cpu"))
        table = torch.zeros(rows, 960)
        kernels._append_voted(some, torch.zeros(50), table, torch.ones(1), 400)


def rotations():
    from fetchsgd.sums.kernels import cuda
    from fetchsgd.sums.layout import Layout

    replace_launches()
    cuda.words(5, 1000, 5, torch.device("cpu"))
    for count in (1, 40, 300, 10_000, 100_000):
        layout = Layout.of(count)
        signs = torch.zeros(layout.words, dtype=torch.int32)
        cuda.rotate(torch.zeros(2, count), signs, layout)
        cuda.rotate_back(torch.zeros(2, layout.cells), signs, layout)


def convolutions():
    from fetchsgd.clients import convolution_cuda

    replace_launches()
    layer = torch.nn.Conv2d(16, 32, 3, padding=1, bias=False)
    last = torch.channels_last
    inputs = torch.zeros(10, 16, 8, 8, dtype=torch.bfloat16).contiguous(memory_format=last)
    slopes = torch.zeros(10, 32, 8, 8, dtype=torch.bfloat16).contiguous(memory_format=last)
    weight = torch.zeros(2, 32, 16, 3, 3)
    convolution_cuda.write(layer, inputs, slopes, weight, None, layer.weight.detach())


def hooks():
    from fetchsgd.ddp import Settings, fused
    from fetchsgd.ddp.layout import Layout, Piece

    replace_launches()
    wide = Piece("a", 7, 5000, torch.Size([50, 100])), Piece("b", 5007, 9000, torch.Size([90, 100]))
    layout = Layout(wide, (Piece("c", 0, 7, torch.Size([7])),))
    kept = {"step": torch.ones(2), "size": torch.ones(2)}
    for cells in ("float32", "bfloat16", "int16", "int8", "int4"):
        for feedback, dtype in ((0.0, torch.bfloat16), (0.5, torch.float32)):
            buffer, settings = (
                torch.zeros(14007, dtype=dtype),
                Settings(8.0, cells, feedback=feedback),
            )
            bucket = fused.FusedBucket(settings, layout, 0, buffer.device, 0, 4)
            bucket.begin(3, [buffer], kept, torch.zeros(14000))
            bucket.fill()
            bucket.finish()


if __name__ == "__main__":
    for part in (sizes_of_chunks, quantisers, sketches, rotations, convolutions, hooks):
        part()
    print(len(compiled), "programs:", ", ".join(sorted(compiled)))
