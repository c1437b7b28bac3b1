"""Type-check code that uses some modules. All other imports are skipped for speed."""

from pathlib import Path

from mypy import api

ROOT = Path(__file__).parents[2]


def type_errors(folder: Path, code: str, *modules: str) -> list[str]:
    """Return mypy's error codes by line, e.g. ``["5: call-arg"]``.

    Args:
        folder: empty folder for temporary files.
        modules: paths, below the root folder, of the files that ``code`` imports.
    """
    file = folder / "code_under_check.py"
    file.write_text(code)
    options = ["--config-file=", "--follow-imports=skip", f"--cache-dir={folder}", "--no-error-summary"]
    output, errors, _ = api.run([*options, str(file), *(str(ROOT / module) for module in modules)])
    assert not errors
    lines = [line for line in output.splitlines() if file.name in line and ": error:" in line]
    return [f"{line.split(':')[1]}: {line.rpartition('[')[2].rstrip(']')}" for line in lines]
