"""The count that run_tests.sh ends with: a failure must never count as passed, nor go missing."""
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
GTEST = """<?xml version="1.0"?><testsuites><testsuite name="S">
<testcase classname="S" name="a" status="run"/>
<testcase classname="S" name="b" status="run">{inside}</testcase>
<testcase classname="S" name="c" status="run"><skipped message="no"/></testcase>
<testcase classname="S" name="d" status="notrun"/></testsuite></testsuites>"""
FAILURE = '<failure message="x"/>'


def run(folder, script):
    """Runs a shell script as one test, through report_case.sh."""
    program = folder / f"{len(list(folder.iterdir()))}.sh"
    program.write_text(script)
    command = [HERE / "report_case.sh", folder, "sh", program]
    return subprocess.run(command, check=False).returncode


def gtest(inside="", code=0):
    return f"cat >${{GTEST_OUTPUT#xml:}} <<'END'\n{GTEST.format(inside=inside)}\nEND\nexit {code}"


def count(folder, *options):
    result = subprocess.run([sys.executable, HERE / "count_cases.py", *options, f"stage={folder}"],
                            capture_output=True, text=True, check=False)
    return result.stdout.splitlines()[-1], result.returncode, result.stdout


def test_cases_of_a_report_count_one_by_one_and_skipped_ones_not(tmp_path):
    assert run(tmp_path, gtest()) == 0
    assert count(tmp_path)[:2] == ("2 passed, 0 failed", 0)


def test_a_failed_case_counts_once_and_is_named(tmp_path):
    assert run(tmp_path, gtest(FAILURE, 1)) == 1
    last, code, output = count(tmp_path)
    assert (last, code) == ("1 passed, 1 failed", 1)
    assert "S.b" in output


def test_a_program_without_a_report_is_one_case(tmp_path):
    run(tmp_path, "exit 0")
    run(tmp_path, "exit 3")
    run(tmp_path, "exit 77")  # skipped
    assert count(tmp_path)[:2] == ("1 passed, 1 failed", 1)


def test_a_sanitizer_that_speaks_after_the_report_is_a_failure(tmp_path):
    run(tmp_path, gtest(code=66))
    assert count(tmp_path)[:2] == ("2 passed, 1 failed", 1)


def test_a_crash_is_a_failure(tmp_path):
    run(tmp_path, "kill -SEGV $$")
    assert count(tmp_path)[:2] == ("0 passed, 1 failed", 1)


def test_a_program_stopped_with_its_runner_is_a_failure(tmp_path):
    run(tmp_path, "kill -9 $PPID")
    assert count(tmp_path)[:2] == ("0 passed, 1 failed", 1)


def test_a_damaged_report_is_a_failure(tmp_path):
    run(tmp_path, "echo '<testsuites>' >${GTEST_OUTPUT#xml:}")
    assert count(tmp_path)[:2] == ("0 passed, 1 failed", 1)


def test_pytest_reports_count(tmp_path):
    inner = tmp_path / "inner_test.py"
    inner.write_text("import pytest\ndef test_a(): pass\ndef test_b(): assert False\n"
                     "@pytest.mark.skip\ndef test_c(): pass\n")
    run(tmp_path, f"exec {sys.executable} -m pytest -q -p no:cacheprovider {inner}")
    assert count(tmp_path)[:2] == ("1 passed, 1 failed", 1)


def test_a_stage_that_did_not_run_is_a_failure_and_so_is_no_test_at_all(tmp_path):
    assert count(tmp_path)[:2] == ("0 passed, 1 failed", 1)
    (tmp_path / "not_run").write_text("not built\n")
    last, code, output = count(tmp_path)
    assert (last, code) == ("0 passed, 1 failed", 1)
    assert "not built" in output


def test_the_table_replaces_the_one_before_and_nothing_else(tmp_path):
    reports = tmp_path / "reports"
    reports.mkdir()
    page = tmp_path / "PAGE.md"
    page.write_text("# Title\nwords\n")
    figures = tmp_path / "figures"
    figures.mkdir()
    (figures / "soak.md").write_text("| soak | |\n")
    for _ in range(2):
        run(reports, gtest())
        count(reports, "--markdown", page, "--figures", figures)
        page.write_text(page.read_text() + "more words\n")
    text = page.read_text()
    assert text.startswith("# Title\nwords\n") and text.endswith("more words\nmore words\n")
    assert text.count("| stage | 1.sh |") + text.count("| stage | 0.sh |") >= 1
    assert text.count("| --- |") == 1 and text.count("| soak | |\n") == 1
    assert text.count(" cores, Linux ") == 1 and "| 2 | 0 | 1 |" in text
