"""Layers grouped by who holds them."""

from hypothesis import given
from hypothesis import strategies as st

from splitfl.aggregation.blocks import Block, blocks_of


def test_without_holders_there_is_one_block():
    assert blocks_of(["a", "b"], None) == (Block(("a", "b"), None),)
    assert blocks_of([], None) == (Block((), None),)


def test_layers_with_the_same_holders_share_a_block():
    holds = {0: ["a"], 1: ["a", "b", "c"], 2: ["a", "b", "c", "d"]}
    assert blocks_of("abcde", holds) == (
        Block(("a",), frozenset({0, 1, 2})),
        Block(("b", "c"), frozenset({1, 2})),
        Block(("d",), frozenset({2})),
    )


@given(holds=st.dictionaries(st.integers(0, 4), st.sets(st.sampled_from("abcdef")), min_size=1))
def test_every_held_layer_is_in_exactly_one_block_with_all_its_holders(holds):
    blocks = blocks_of("abcdef", holds)
    for name in "abcdef":
        holders = {client for client, held in holds.items() if name in held}
        found = [block for block in blocks if name in block.names]
        assert [set(block.holders) for block in found] == ([holders] if holders else [])
    assert len({block.holders for block in blocks}) == len(blocks)
