#!/bin/sh
# Runs one test of the build and leaves beside each other, for count_cases.py: what was run, its
# reports by case, and, last, its exit code. A program that dies or is stopped leaves no exit code.
#   report_case.sh FOLDER COMMAND...      (meson test --wrapper "report_case.sh FOLDER")
mine=$1/$$
shift
printf '%s\n' "$@" >"$mine.command"
GTEST_OUTPUT=xml:$mine.gtest.xml
PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} --junitxml=$mine.pytest.xml"
export GTEST_OUTPUT PYTEST_ADDOPTS
"$@"
code=$?
echo $code >"$mine.exit"
exit $code
