"""What is let off a size cap, each with its reason; nothing else is.

A name is `path` for a module, `path::Class`, `path::function` or `path::Class.method`.
A folder (ending in `/`) lets off all that is in it.
"""

FUNCTION = {
    "eplb_service/policies/kernels/": "compiled kernels are flat loops over arrays",
}
PARAMETERS = {
    "eplb_service/policies/kernels/": "compiled kernels take arrays, not objects",
}
MODULE: dict[str, str] = {}
CLASS: dict[str, str] = {}
PUBLIC_METHODS: dict[str, str] = {}
FIELDS: dict[str, str] = {}


def is_exempt(name: str, exemptions: dict[str, str]) -> bool:
    """Whether a name is let off, by itself or by its folder."""
    return any(name == e or (e.endswith("/") and name.startswith(e)) for e in exemptions)
