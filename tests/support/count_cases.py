"""Counts test cases from the folders that report_case.sh filled, and prints them.

    count_cases.py [--markdown FILE [--figures FOLDER]] STAGE=FOLDER...

A program with a GoogleTest or pytest report counts by its cases, any other program as one case.
One that failed without a failed case in its report (it crashed, ran out of time, or a sanitizer
spoke at its end) counts as one failed case more. A stage that did not even start leaves a file
`not_run` with the reason in its folder. The last line is `N passed, N failed`; the exit code is 1
if any failed. The page FILE gets a table of all programs, with what was skipped, the commit and the
machine, and below it the pages (*.md) that long tests left in FOLDER.
"""
import argparse
import datetime
import os
import pathlib
import platform
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

SKIPPED = 77  # Meson's exit code for it


def name_of(command):
    """The test program among the words of a command line: mpirun and python are not it."""
    words = command.read_text().split("\n")
    for word in words:
        path = pathlib.Path(word)
        if "/tests/" in word or path.suffix in (".py", ".sh"):
            return path.name
    return pathlib.Path(words[0]).name


def cases_in(report):
    """(passed, names of the failed, skipped) in a JUnit file, as GoogleTest and pytest write it."""
    passed, failed, skipped = 0, [], 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}.{case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
        elif case.get("status") != "notrun":
            passed += 1
    return passed, failed, skipped


def count_program(command):
    """(passed, names of the failed, skipped) of one program."""
    passed, failed, skipped = 0, [], 0
    exit_file = command.with_suffix(".exit")
    code = int(exit_file.read_text()) if exit_file.exists() else None
    reports = [command.with_suffix(suffix) for suffix in (".gtest.xml", ".pytest.xml")]
    reports = [report for report in reports if report.exists()]
    for report in reports:
        try:
            more_passed, more_failed, more_skipped = cases_in(report)
        except ElementTree.ParseError:
            more_passed, more_failed, more_skipped = 0, ["(its report is damaged)"], 0
        passed += more_passed
        failed += more_failed
        skipped += more_skipped
    if code is None:
        failed.append("(crashed the runner or ran out of time)")
    elif code == SKIPPED and not reports:
        skipped += 1
    elif code != 0 and not failed:
        failed.append(f"(exit code {code})")
    elif not reports and code == 0:
        passed += 1
    return passed, failed, skipped


def count_stage(folder):
    """{program: (passed, names of the failed, skipped)}; a program run several times adds up."""
    programs = {}
    reason = folder / "not_run"
    if reason.exists():
        programs[f"({reason.read_text().strip()})"] = (0, ["(not run)"], 0)
    for command in sorted(folder.glob("*.command")):
        name = name_of(command)
        before = programs.get(name, (0, [], 0))
        programs[name] = tuple(old + new for old, new in zip(before, count_program(command)))
    return programs


def markdown(stages):
    lines = ["| stage | program | passed | failed | skipped |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for stage, programs in stages.items():
        for name, (passed, failed, skipped) in sorted(programs.items()):
            lines.append(f"| {stage} | {name} | {passed} | {len(failed)} | {skipped} |")
    return "\n".join(lines)


def circumstances():
    """When, of what, and where the tests ran."""
    here = pathlib.Path(__file__).parent
    command = ["git", "-C", here, "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    date = datetime.datetime.now(datetime.timezone.utc).date()
    return f"{date}, commit {commit}, {os.cpu_count()} cores, Linux {platform.release()}."


BEGIN, END = "<!-- run_tests.sh --full: begin -->", "<!-- run_tests.sh --full: end -->"


def publish(path, table):
    """Puts the table between its two marks in the page; the rest of the page is not touched."""
    page = path.read_text() if path.exists() else "# Reliability\n"
    if BEGIN not in page:
        page += "\n## Every test in full\n`jobscripts/run_tests.sh --full` wrote this table.\n\n"
        page += f"{BEGIN}\n{END}\n"
    head, rest = page.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    path.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--markdown", type=pathlib.Path)
    arguments.add_argument("--figures", type=pathlib.Path)
    arguments.add_argument("stages", nargs="+", metavar="STAGE=FOLDER")
    options = arguments.parse_args()
    stages = {}
    for stage in options.stages:
        name, folder = stage.split("=", 1)
        stages[name] = count_stage(pathlib.Path(folder))

    total_passed = total_failed = 0
    print()
    for stage, programs in stages.items():
        passed = sum(p for p, _, _ in programs.values())
        failed = sum(len(f) for _, f, _ in programs.values())
        print(f"{stage:24} {len(programs):4} programs {passed:6} passed {failed:6} failed")
        for name, (_, names, _) in sorted(programs.items()):
            for case in names:
                print(f"  FAILED {name}: {case}")
        total_passed += passed
        total_failed += failed
    if options.markdown:
        parts = [circumstances(), markdown(stages)]
        if options.figures:
            parts += [page.read_text().strip() for page in sorted(options.figures.glob("*.md"))]
        publish(options.markdown, "\n\n".join(parts))
    if total_passed + total_failed == 0:
        print("no test was run")
        total_failed = 1
    print(f"{total_passed} passed, {total_failed} failed")
    return 1 if total_failed else 0


if __name__ == "__main__":
    sys.exit(main())
