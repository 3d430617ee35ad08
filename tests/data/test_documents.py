import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpp.data.documents import document_mask, document_numbers, document_positions

END = 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=7, max_size=7), min_size=1, max_size=3))
def test_masks_and_positions_follow_the_ends(rows):
    inputs = np.array(rows)
    numbers, positions, mask = (f(inputs, END) for f in (document_numbers, document_positions, document_mask))
    for row, tokens in enumerate(rows):
        for query in range(7):
            begin = max((place + 1 for place in range(query) if tokens[place] == END), default=0)
            assert numbers[row, query] == tokens[:query].count(END)
            assert positions[row, query] == query - begin
            assert mask[row, query].tolist() == [begin <= key <= query for key in range(7)]


def test_an_end_belongs_to_the_document_that_it_ends():
    assert document_numbers(np.array([5, END, 6, END, END, 7]), END).tolist() == [0, 0, 1, 1, 2, 3]
