"""Pages stay readable: short README, small tables, short lines."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "integrations").glob("*/README.md")),
    *(path for name in ("training", "studies", "tests") for path in sorted((ROOT / name).rglob("README.md"))),
]
IN_REPOSITORY = re.compile(
    r"https://(?:github\.com/ragbias/ragbias/blob|raw\.githubusercontent\.com/ragbias/ragbias)/main/"
)
FENCE = re.compile(r"^ *(```+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"(?<!\\)\|")
LINK = re.compile(r"\]\([^)]+\)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
INTERVAL = re.compile(r"\([+-]?[\d.]+ to [+-]?[\d.]+\)")
FIGURE = re.compile(r"(?<![\w.`-])[+-]?\d[\d,]*\.\d+(?![\w.`])")
LARGEST_RASTER = 200_000


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)
every_page_of_text = pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name not in {"results", "experiments"}], ids=page_id
)


def rows(page: Path) -> Iterator[list[str]]:
    """Return the cells of each table row, without the lines of dashes."""
    for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            yield [cell.strip() for cell in CELL.split(line.strip()[1:-1])]


def words(cell: str) -> int:
    """Count the words that a reader sees. A link or code counts as its text."""
    return len(LINK.sub("]", cell).split())


@every_page
def test_tables_have_at_most_seven_columns(page):
    assert [row for row in rows(page) if len(row) > 7] == []


@every_page
def test_table_cells_have_at_most_15_words(page):
    assert [cell for row in rows(page) for cell in row if words(cell) > 15] == []


@every_page
def test_lines_have_at_most_600_characters(page):
    assert [line for line in page.read_text(encoding="utf-8").splitlines() if len(line) > 600] == []


@every_page_of_text
def test_sentences_have_at_most_two_measured_numbers(page):
    """Decimal numbers outside tables and code, without intervals. More numbers belong in a table."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`]*`|\]\([^)]+\)|\[\d{4}\.\d{4,5}|https?://\S+", "", INTERVAL.sub("", text))
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#", "<!--"))]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    sentences = [each for paragraph in paragraphs for each in SENTENCE_END.split(paragraph)]
    assert [" ".join(each.split()) for each in sentences if len(FIGURE.findall(each)) > 2] == []


def test_the_readme_fits_on_a_page():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    assert len(LINK.findall(text)) <= 10
    assert text.count("<img") + text.count("![") == 1
    caption = re.search(r"</picture>\n\n\*(.+?)\*\n\n", text, re.DOTALL)
    assert caption is not None
    assert len(caption[1].splitlines()) <= 3
    methods = text.split("## What to use when\n\n")[1].split("\n\n")[0]
    assert len(methods.splitlines()) == 2 + 3


def test_a_version_has_at_most_30_lines_in_the_changelog():
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert versions and all(len(version.splitlines()) <= 30 for version in versions)


def test_contributing_lists_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = [path.parent.name for path in (ROOT / "ragbias").glob("*/__init__.py")]
    assert [name for name in packages if f"`ragbias/{name}`" not in text] == []


@every_page
def test_files_named_in_a_page_exist(page):
    text = re.sub(r"\]\([^)]+\)", "", page.read_text(encoding="utf-8"))
    named = re.findall(r"(?<![\w/.-])((?:ragbias|studies|tests|examples|training|deploy)/[\w/.-]+\.\w+)", text)
    named += [f"studies/{module}.py" for module in re.findall(r"python -m studies\.([a-z]\w*)", text)]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_pictures_of_the_start_pages_exist_for_light_and_dark(name):
    page = ROOT / name
    pictures = re.findall(r'(?:srcset|src)="([^"]+)"|!\[[^\]]*\]\(([^)#]+)', page.read_text(encoding="utf-8"))
    found = sorted(Path(html or markdown).name for html, markdown in pictures)
    assert [Path(name).stem for name in found] == ["bias-dark", "bias-light"]
    local = [IN_REPOSITORY.sub(f"{ROOT}/", html or markdown) for html, markdown in pictures]
    assert all((page.parent / path).exists() for path in local)


def test_no_raster_image_has_more_than_200_kb():
    images = [path for path in (ROOT / "docs").rglob("*") if path.suffix in {".png", ".jpg", ".jpeg", ".webp"}]
    assert [page_id(path) for path in images if path.stat().st_size > LARGEST_RASTER] == []
