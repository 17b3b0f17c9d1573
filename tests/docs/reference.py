"""docs/api.md from docstrings and proto comments: `python -m tests.docs.reference` writes it.

Python is read as text, so that the page needs neither torch nor Ray to be written; messages come
from buf, which keeps their comments.
"""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"
HEAD = """\
# API

Written by `make api-docs` from docstrings and from the comments of `proto/eplb/v1`; a test holds
them together. What is not here is not meant to be used from outside and may change at any time.

Python: [attach an engine](#attach-an-engine), [the MoE runtime](#the-moe-runtime),
[write a policy](#write-a-policy). gRPC: [operators](#eplbv1adminproto),
[ranks](#eplbv1agentproto), [shared types](#eplbv1typesproto).
"""
ALL: tuple[str, ...] = ()
DOORS: tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...] = (
    (
        "Attach an engine",
        (
            ("worker_agent.main", ("attach",)),
            ("worker_agent.agent.hook", ("StepHook",)),
            ("worker_agent.ports.engine", ("StepKind",)),
            (
                "worker_agent.settings.settings",
                ("AgentSettings", "DeploymentSettings", "PaceSettings"),
            ),
        ),
    ),
    ("The MoE runtime", (("moe_runtime.runtime", ALL),)),
    (
        "Write a policy",
        (
            ("eplb_service.policies.request", ("Policy", "PolicyRequest", "predicted_load")),
            (
                "eplb_service.domain.placement",
                ("Placement", "initial_placement", "placement_from_ranks"),
            ),
        ),
    ),
)
"""Title of a part, its modules, and what of each is meant for others; ALL: its `__all__`."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
SCALARS = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}


def page() -> str:
    """Return the page, in Markdown."""
    parts = [HEAD]
    for title, modules in DOORS:
        parts.append(f"## {title}\n")
        parts += [text for module, names in modules for text in _module(module, names)]
    parts += [text for file in _files() for text in _proto(file)]
    return "\n".join(parts)


# ---- Python ----------------------------------------------------------------------


def _module(module: str, names: tuple[str, ...]) -> Iterator[str]:
    yield f"### `{module}`\n"
    for name in names or _exported(module):
        yield from _named(name, *_found(module, name))


def _tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _exported(module: str) -> list[str]:
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise LookupError(f"{module} has no __all__")


def _found(module: str, name: str) -> tuple[ast.stmt, str]:
    """Return the statement that makes a name, and the string that stands below it."""
    body = _tree(module).body
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _found(node.module, alias.name)
        elif name in _names_of(node):
            return node, _string(below)
    raise LookupError(f"{module} has no {name}")


def _names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Assign():
            return [ast.unparse(target) for target in node.targets]
        case ast.AnnAssign():
            return [ast.unparse(node.target)]
        case _:
            return []


def _string(node: ast.stmt | None) -> str:
    """A docstring below an assignment; empty where there is none."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return inspect.cleandoc(str(node.value.value))
    return ""


def _named(name: str, node: ast.stmt, below: str) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield from _class(node)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield f"#### `{name}`\n\n{_code(_signature(node))}\n{_prose(node)}"
    else:
        yield f"#### `{name}`\n\n{_code(ast.unparse(node))}\n{_plain(below)}"


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"#### `{node.name}`\n"
    lines = [f"@{ast.unparse(mark)}" for mark in node.decorator_list]
    lines.append(f"class {node.name}({bases}):" if bases else f"class {node.name}:")
    told: list[str] = []
    for part, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and _is_public(part):
            lines += [f"    {line}" for line in _signature(part).splitlines()]
            if text := ast.get_docstring(part):
                told.append(f"`{part.name}`: {_first(text)}")
        elif isinstance(part, ast.Assign | ast.AnnAssign) and not _is_hidden(part):
            lines.append(f"    {ast.unparse(part)}")
            if text := _string(below):
                told.append(f"`{_names_of(part)[0]}`: {_first(text)}")
    yield f"{_code(chr(10).join(lines))}\n{_prose(node)}"
    if told:
        yield "".join(f"- {line}\n" for line in told)


def _is_hidden(node: ast.Assign | ast.AnnAssign) -> bool:
    return _names_of(node)[0].startswith("_") or "model_config" in _names_of(node)


def _is_public(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.name == "__init__" or not node.name.startswith("_")


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks = "".join(f"@{ast.unparse(mark)}\n" for mark in node.decorator_list)
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{marks}{start} {node.name}({ast.unparse(node.args)}){result}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _prose(node: Definition) -> str:
    return _plain(ast.get_docstring(node) or "")


def _plain(text: str) -> str:
    """A docstring as it is: its columns and examples would not survive Markdown."""
    return f"```text\n{text}\n```\n" if text else ""


def _first(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


# ---- gRPC ------------------------------------------------------------------------


def _files() -> list[FileDescriptorProto]:
    buf = Path(sys.executable).with_name("buf")
    made = subprocess.run(
        [buf, "build", "proto", "-o", "-#format=binpb"], cwd=ROOT, capture_output=True, check=True
    )
    files = FileDescriptorSet.FromString(made.stdout).file
    return sorted((f for f in files if f.package == "eplb.v1"), key=lambda f: f.name)


class _Comments:
    """What stands above the parts of one file, by where they are."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._by_path = {
            tuple(one.path): one.leading_comments for one in file.source_code_info.location
        }

    def at(self, *path: int) -> str:
        return " ".join(self._by_path.get(path, "").split())


def _proto(file: FileDescriptorProto) -> Iterator[str]:
    comments = _Comments(file)
    yield f"## `{file.name}`\n"
    for at, service in enumerate(file.service):
        yield f"### service `{service.name}`\n\n{comments.at(6, at)}\n"
        yield "| call | does |\n| --- | --- |"
        for number, call in enumerate(service.method):
            asked = _stream(call.client_streaming) + _link(call.input_type)
            answer = _stream(call.server_streaming) + _link(call.output_type)
            text = comments.at(6, at, 2, number)
            yield f"| `{call.name}` ({asked}) returns {answer} | {_cell(text)} |"
        yield ""
    for at, message in enumerate(file.message_type):
        yield from _message(message, comments, (4, at))
    for at, enum in enumerate(file.enum_type):
        yield from _enum(enum, comments, (5, at))


def _stream(is_stream: bool) -> str:  # noqa: FBT001 - one field of a descriptor
    return "stream " if is_stream else ""


def _link(full_name: str) -> str:
    name = full_name.rpartition(".")[2]
    return f"[{name}](#message-{name.lower()})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _message(message: DescriptorProto, comments: _Comments, path: tuple[int, ...]) -> Iterator[str]:
    yield f"#### message `{message.name}`\n\n{comments.at(*path)}\n"
    if message.field:
        yield "| field | type | means |\n| --- | --- | --- |"
    for at, field in enumerate(message.field):
        text = _cell(comments.at(*path, 2, at))
        yield f"| {field.number} `{field.name}` | {_type(field, message)} | {text} |"
    if message.field:
        yield ""
    for at, enum in enumerate(message.enum_type):
        yield from _enum(enum, comments, (*path, 4, at))


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    kinds = FieldDescriptorProto
    nested = {entry.name: entry for entry in message.nested_type}
    entry = nested.get(field.type_name.rpartition(".")[2])
    if entry is not None and entry.options.map_entry:
        return f"map of {_type(entry.field[0], entry)} to {_type(entry.field[1], entry)}"
    match field.type:
        case kinds.TYPE_MESSAGE:
            text = _link(field.type_name)
        case kinds.TYPE_ENUM:
            name = field.type_name.rpartition(".")[2]
            text = f"[{name}](#enum-{name.lower()})"
        case _:
            text = SCALARS[field.type]
    if field.proto3_optional:
        return f"optional {text}"
    return f"repeated {text}" if field.label == kinds.LABEL_REPEATED else text


def _enum(enum: EnumDescriptorProto, comments: _Comments, path: tuple[int, ...]) -> Iterator[str]:
    yield f"#### enum `{enum.name}`\n\n{comments.at(*path)}\n"
    yield "| value | means |\n| --- | --- |"
    for at, value in enumerate(enum.value):
        yield f"| {value.number} `{value.name}` | {_cell(comments.at(*path, 2, at))} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
