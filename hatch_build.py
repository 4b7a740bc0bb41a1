"""What the build adds to the package: the commit, and a description whose links are whole addresses."""

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"!\[([^]]*)\]\((?!https?://)([^)]+)\)")
_RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)([^)]+)\)")


class Commit(BuildHookInterface[Any]):
    """Writes the commit into the package, for `--version`; an archive without git keeps the commit it was made from."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add `turnkeeper/COMMIT` to a wheel or an archive that is made in a git checkout."""
        if version == "editable" or not (Path(self.root) / ".git").exists():
            return
        done = subprocess.run(  # noqa: S603
            ["git", "-C", self.root, "rev-parse", "--short=12", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
        folder = Path(self.directory)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "COMMIT"
        file.write_text(done.stdout)
        build_data["force_include"][str(file)] = "turnkeeper/COMMIT"

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        """Remove the file beside the built archive."""
        (Path(self.directory) / "COMMIT").unlink(missing_ok=True)


class Description(MetadataHookInterface):
    """Makes the README's links whole, and names the project's addresses: one line of pyproject.toml sets them all."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls` from the address of the repository."""
        repository = self.config["repository"].rstrip("/")
        text = (Path(self.root) / "README.md").read_text("utf-8")
        whole = _PICTURE.sub(rf"![\1]({repository}/raw/main/\2)", text)
        whole = _RELATIVE_LINK.sub(rf"]({repository}/blob/main/\1)", whole)
        metadata["readme"] = {"content-type": "text/markdown", "text": whole}
        metadata["urls"] = {
            "Repository": repository,
            "Documentation": f"{repository}/tree/main/docs",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
