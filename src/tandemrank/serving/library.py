"""Saved pairs in one folder, and nowhere else: what a live server may load."""

from pathlib import Path

from tandemrank.errors import PolicyError
from tandemrank.policies.two_stage import load
from tandemrank.serving.live import LivePair


class Library:
    """The pairs below a folder; a path that leads out of it, by dots or by a link, is refused."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()

    def name_of(self, pair: Path) -> str:
        """The name here of a pair's folder; refuses one that is elsewhere."""
        if not pair.resolve().is_relative_to(self.folder):
            raise PolicyError(f"{pair} is not in the folder of pairs {self.folder}.")
        return str(pair.resolve().relative_to(self.folder))

    def load(self, name: str) -> LivePair:
        """The pair in the folder of that name, warm."""
        live = LivePair(load(self._inside(name)), name=_text(name))
        live.warm()
        return live

    def names(self) -> list[str]:
        """The folders that hold a saved pair, at most two levels down."""
        found = [p.parent for depth in ("*", "*/*", "*/*/*") for p in self.folder.glob(f"{depth}/config.json")]
        names = sorted(str(p.relative_to(self.folder)) for p in found if self._stays_inside(p))
        return [name for name in names if name == _text(name)]  # another could not be asked for

    def find(self, digests: set[str]) -> list[LivePair]:
        """The pairs with these digests, as far as they are there."""
        found: list[LivePair] = []
        wanted = set(digests)
        for name in self.names():
            if not wanted:
                break
            try:
                live = LivePair(load(self._inside(name)), name=_text(name))
            except PolicyError:
                continue
            if live.digest in wanted:
                wanted.remove(live.digest)
                found.append(live)
        return found

    def _inside(self, name: str) -> Path:
        if "\0" in name:
            raise PolicyError("a path has no null bytes.")
        try:
            path = (self.folder / name).resolve()
            if not path.is_relative_to(self.folder) or path == self.folder:
                raise PolicyError(f"{name[:60]!r} is not below the folder of pairs.")
            if not path.is_dir():
                raise PolicyError(f"there is no saved pair {name[:60]!r} in the folder of pairs.")
            if not self._stays_inside(path):
                raise PolicyError(f"a file of {name[:60]!r} is a link that leads out of the folder of pairs. Copy it.")
        except (OSError, RuntimeError, ValueError) as error:  # a name too long, a circle of links
            if isinstance(error, PolicyError):
                raise
            raise PolicyError(f"{name[:60]!r} is not a path.") from error
        return path

    def _stays_inside(self, path: Path) -> bool:
        """Whether a folder and all that is in it are in the folder of pairs, wherever links lead."""
        return all(p.resolve().is_relative_to(self.folder) for p in (path, *path.rglob("*")))


def _text(path: object) -> str:
    """A path as text that every encoding of Unicode takes, whatever bytes it has."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")
