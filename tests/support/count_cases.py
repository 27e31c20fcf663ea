"""Counts test cases from the folders that report_case.sh filled, and prints them.

    count_cases.py [--markdown FILE] STAGE=FOLDER...

A program with a GoogleTest or pytest report counts by its cases, any other program as one case.
One that failed without a failed case in its report (it crashed, ran out of time, or a sanitizer
spoke at its end) counts as one failed case more. A stage that did not even start leaves a file
`not_run` with the reason in its folder. The last line is `N passed, N failed`; the exit code is 1
if any failed.
"""
import argparse
import pathlib
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
    """(passed, names of the failed) in a JUnit file, as GoogleTest and pytest write it."""
    passed, failed = 0, []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}.{case.get('name')}")
        elif case.find("skipped") is None and case.get("status") != "notrun":
            passed += 1
    return passed, failed


def count_program(command):
    """(passed, names of the failed) of one program."""
    passed, failed = 0, []
    exit_file = command.with_suffix(".exit")
    code = int(exit_file.read_text()) if exit_file.exists() else None
    reports = [command.with_suffix(suffix) for suffix in (".gtest.xml", ".pytest.xml")]
    reports = [report for report in reports if report.exists()]
    for report in reports:
        try:
            more_passed, more_failed = cases_in(report)
        except ElementTree.ParseError:
            more_passed, more_failed = 0, ["(its report is damaged)"]
        passed += more_passed
        failed += more_failed
    if code is None:
        failed.append("(crashed the runner or ran out of time)")
    elif code == SKIPPED and not reports:
        pass
    elif code != 0 and not failed:
        failed.append(f"(exit code {code})")
    elif not reports and code == 0:
        passed += 1
    return passed, failed


def count_stage(folder):
    """{program: (passed, names of the failed)}; a program run several times adds up."""
    programs = {}
    reason = folder / "not_run"
    if reason.exists():
        programs[f"({reason.read_text().strip()})"] = (0, ["(not run)"])
    for command in sorted(folder.glob("*.command")):
        name = name_of(command)
        passed, failed = count_program(command)
        before = programs.get(name, (0, []))
        programs[name] = (before[0] + passed, before[1] + failed)
    return programs


def markdown(stages):
    lines = ["| stage | program | passed | failed |", "| --- | --- | ---: | ---: |"]
    for stage, programs in stages.items():
        for name, (passed, failed) in sorted(programs.items()):
            lines.append(f"| {stage} | {name} | {passed} | {len(failed)} |")
    return "\n".join(lines)


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
    arguments.add_argument("stages", nargs="+", metavar="STAGE=FOLDER")
    options = arguments.parse_args()
    stages = {}
    for stage in options.stages:
        name, folder = stage.split("=", 1)
        stages[name] = count_stage(pathlib.Path(folder))

    total_passed = total_failed = 0
    print()
    for stage, programs in stages.items():
        passed = sum(p for p, _ in programs.values())
        failed = sum(len(f) for _, f in programs.values())
        print(f"{stage:24} {len(programs):4} programs {passed:6} passed {failed:6} failed")
        for name, (_, names) in sorted(programs.items()):
            for case in names:
                print(f"  FAILED {name}: {case}")
        total_passed += passed
        total_failed += failed
    if options.markdown:
        publish(options.markdown, markdown(stages))
    if total_passed + total_failed == 0:
        print("no test was run")
        total_failed = 1
    print(f"{total_passed} passed, {total_failed} failed")
    return 1 if total_failed else 0


if __name__ == "__main__":
    sys.exit(main())
