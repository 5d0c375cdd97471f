"""Files that come inside an installed package, such as a model's weights; the package itself is not imported."""

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path


def packaged_file(package: str, suffix: str, needs: Sequence[str], install: str) -> Path:
    """Return the first file of ``package`` whose name ends in ``suffix``.

    Raises
    ------
    RuntimeError
        When the package, its file or one of the modules in ``needs`` is missing; ``install`` is the command that helps.
    """
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        missing.append(package)
        files = []
    if missing:
        raise RuntimeError(f"not installed: {', '.join(missing)}. Run: {install}")
    found = [Path(str(file.locate())) for file in files if file.name.endswith(suffix)]
    if not found or not found[0].exists():
        raise RuntimeError(f"{package} is installed without its {suffix} file. Run: {install} --force-reinstall")
    return found[0]
