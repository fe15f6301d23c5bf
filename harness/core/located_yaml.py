"""The nodes of a YAML document, and the line on which each of them stands."""

from __future__ import annotations

from typing import Any

import yaml


class LocatedYaml:
    """A document as it is composed; whoever derives from it reads it and names its errors."""

    root: Any = None

    def load_values(self, loader: Any) -> Any:
        """Its nodes, looked at, and the plain values that they stand for."""
        try:
            self.root = loader.get_single_node()
            self.check_nodes(self.root)
            return loader.construct_document(self.root) if self.root else None
        finally:
            loader.dispose()

    def make_syntax_error(self, error: yaml.YAMLError, format_name: str) -> Exception:
        """The error to raise for text that is not YAML."""
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        said = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        return self.make_error(mark.line + 1 if mark else 1, f"not {format_name}: {said}")

    def make_error(self, line: int, problem: str) -> Exception:
        """The error to raise."""
        raise NotImplementedError

    def is_valid_key(self, key: Any) -> bool:
        """Whether a node may be a key."""
        return isinstance(key, yaml.ScalarNode)

    def check_scalar(self, node: Any) -> None:
        """Refuse a value that is none."""

    def check_nodes(self, node: Any, visited: set[int] | None = None) -> None:
        """Refuse a doubled key, a key that is no word, a value that is none; aliases once."""
        visited = set() if visited is None else visited
        if id(node) in visited:
            return
        visited.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            self.check_scalar(node)
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self.check_nodes(item, visited)
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not self.is_valid_key(key):
                    raise self.make_error(line, "a key is a word")
                if key.value in seen:
                    raise self.make_error(line, f"the key '{key.value}' stands twice")
                seen.add(key.value)
                self.check_nodes(value, visited)

    def find_line(self, *path: str | int) -> int:
        """The line of a value, or of the nearest thing around it that is there."""
        node = self.root
        line: int = node.start_mark.line + 1 if node else 1
        for step in path:
            inside = None
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == step:
                        line, inside = key.start_mark.line + 1, value
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                inside = node.value[step]
                line = inside.start_mark.line + 1
            if inside is None:
                break
            node = inside
        return line
