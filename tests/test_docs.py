"""What the documentation shows is what happens."""

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_getting_started():
    page = ROOT / "docs" / "getting_started.rst"
    failed, attempted = doctest.testfile(str(page), module_relative=False)
    assert attempted > 10
    assert failed == 0


def test_quickstart_of_the_readme(capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    exec(compile(code, "README.md", "exec"), {})
    shown = re.findall(r"# (\S.*)$", code, re.M)[-2:]
    for line, promised in zip(capsys.readouterr().out.splitlines(), shown, strict=True):
        numbers = [round(float(x), 3) for x in re.findall(r"[\d.]+", line)]
        assert numbers == [float(x) for x in re.findall(r"[\d.]+", promised)]
        assert line.startswith("[False]") == promised.startswith("[False]")
