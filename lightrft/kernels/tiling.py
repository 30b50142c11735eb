"""How much is worked on at a time, so that `chunk_size` bounds the memory: chunk_size x V x 4 bytes + 64 MiB.

                      columns of the vocabulary
        forward       whole rows of float32 logits, `chunk_size` of them: read once, row by row
        backward      float32 logits of a narrow tile ─► gradient of the logits in the operands' own dtype,
                      kept for all columns, as the product with the weight sums over them

A gradient in 16 bits takes half the room of float32 logits, so the backward pass takes up to twice as many
rows at once: half as many additions to the weight's gradient. Its tile is small enough to stay in a GPU's L2
cache between the product that writes it and the kernel that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MIB = 1 << 20
TILE_BYTES = 32 * MIB  # of float32 logits between a product and the kernel that reads it
SCAN_TILE_BYTES = 0  # the same for the forward pass on a GPU; 0: whole rows
ROW_MULTIPLE = 128  # rows of a chunk; a product's own tiles are then full
COLUMN_MULTIPLE = 256
PITCH = 16  # elements: a row starts where 16-byte accesses may


@dataclass(frozen=True)
class Tile:
    """`rows` at a time, and of these `columns` at a time."""

    rows: int
    columns: int


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def spans(length: int, size: int) -> Iterator[slice]:
    """`length` in slices of `size`; the last may be shorter."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _columns(rows: int, num_columns: int, tile_bytes: int, width: int) -> int:
    """As many columns as `tile_bytes` hold for `rows`; at least `COLUMN_MULTIPLE`, at most all."""
    fitting = tile_bytes // (rows * width) // COLUMN_MULTIPLE * COLUMN_MULTIPLE
    return min(max(fitting, COLUMN_MULTIPLE), num_columns)


def forward_tile(num_rows: int, num_columns: int, chunk_size: int, width: int, on_gpu: bool) -> Tile:
    """For `[num_rows, num_columns]` logits of `width` bytes each."""
    rows = max(1, min(num_rows, chunk_size))
    tile_bytes = SCAN_TILE_BYTES if on_gpu else TILE_BYTES
    return Tile(rows, _columns(rows, num_columns, tile_bytes, width) if tile_bytes else num_columns)


def backward_tile(num_rows: int, num_columns: int, chunk_size: int, width: int, kept_width: int) -> Tile:
    """The same, where the gradient is kept in `kept_width` bytes; rows of all chunks are about as many."""
    num_rows = max(1, num_rows)
    rows = min(num_rows, chunk_size * max(1, width // kept_width))
    columns = _columns(rows, num_columns, TILE_BYTES, width)
    if kept_width < width:
        room = chunk_size * round_up(num_columns, PITCH) * width + TILE_BYTES
        rows = max(1, min(rows, room // (round_up(num_columns, PITCH) * kept_width + columns * width)))
    even = -(-num_rows // -(-num_rows // rows))
    return Tile(min(rows, round_up(even, ROW_MULTIPLE)), columns)
