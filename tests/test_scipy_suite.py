"""SciPy's own tests of softmax, log_softmax and logsumexp, run whole on dualsoft's functions."""

import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from conftest import USABLE
from process import ROOT, python

DEFAULT = next((name for name in reversed(USABLE) if ":" in name), None)


@pytest.mark.parametrize("name", ["reference"] + ([DEFAULT] if DEFAULT else []))
def test_scipys_own_tests(name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    empty = tmp_path / "pytest.ini"
    empty.write_text("[pytest]\n")
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    done = python(
        "-m", "pytest", "-q", "-p", "scipy_replacement", "-c", str(empty), "-p", "no:cacheprovider",
        f"--junitxml={report}", "--pyargs", "scipy.special.tests.test_logsumexp",
        cwd=tmp_path, PYTHONPATH=path, BACKEND_UNDER_TEST=name, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    suite = ET.parse(report).getroot()[0]
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    assert counts["tests"] > 100, counts
    assert not counts["failures"] + counts["errors"] + counts["skipped"], counts
