"""Files and messages as faults leave them: a few bytes of a good one changed, lost or repeated."""

from hypothesis import strategies as st

MOST_FAULTS = 3


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """A good text with up to three faults, or none."""
    text = bytearray(good)
    for _ in range(draw(st.integers(0, MOST_FAULTS))):
        at = draw(st.integers(0, max(0, len(text) - 1)))
        length = draw(st.integers(1, 16))
        match draw(st.sampled_from(["change", "lose", "repeat", "insert", "cut"])):
            case "change" if text:
                text[at] ^= draw(st.integers(1, 255))
            case "lose":
                del text[at : at + length]
            case "repeat":
                text[at:at] = text[at : at + length]
            case "insert":
                text[at:at] = draw(st.binary(min_size=1, max_size=8))
            case _:
                del text[at:]
    return bytes(text)
