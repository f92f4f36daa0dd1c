"""The count of words that make sentences hard to read: see `scripts/check_english.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_english
from scripts.check_english import hits_below, hits_of, hits_of_page

MODULE = '''"""Return the place where it lies.

Nobody waits for it, as it is told early.
"""

# Whoever asks gets `where`, as it is known.
WORDS = f"nobody {MODULE} is told", "where"
'''
PAGE = """# Pages

The keys, as `where` says:

```python
place = where(nobody)
```
Whoever asks gets it, as soon as it is known, as far as it is, as if it were, as well.
"""


def test_a_hit_is_a_word_of_a_docstring_a_comment_or_a_text_with_a_space() -> None:
    found = [(1, "where"), (3, "nobody"), (3, "as"), (3, "is told"), (6, "whoever"), (6, "as")]
    found += [(7, "nobody"), (7, "is told")]
    assert sorted(set(hits_of(MODULE))) == sorted(found)


def test_a_page_is_read_without_its_code() -> None:
    assert sorted(hits_of_page(PAGE)) == [(3, "as"), (8, "whoever")]


def test_hits_are_listed_by_file(tmp_path: Path) -> None:
    web, docs = tmp_path / "fastdedup" / "web", tmp_path / "docs"
    web.mkdir(parents=True)
    docs.mkdir()
    (web / "forms.py").write_text(MODULE, encoding="utf-8")
    (web.parent / "plain.py").write_text('"""Return the key if there is one."""\n', encoding="utf-8")
    (docs / "pages.md").write_text(PAGE, encoding="utf-8")
    assert {path for path, _, _ in hits_below(tmp_path)} == {
        Path("fastdedup/web/forms.py"),
        Path("docs/pages.md"),
    }


def test_a_folder_above_its_bar_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fastdedup" / "sidecar").mkdir(parents=True)
    (tmp_path / "fastdedup" / "sidecar" / "verbs.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setattr(check_english, "ROOT", tmp_path)
    monkeypatch.setattr(check_english, "BARS", {"sidecar": 1})
    with pytest.raises(SystemExit, match="sidecar"):
        check_english.main()
    assert "fastdedup/sidecar/verbs.py:1: where" in capsys.readouterr().out
