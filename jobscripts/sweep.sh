#!/usr/bin/env bash
# Trains a deck once for each combination of some values, as one Slurm job array, and ranks the
# results in a table.
set -euo pipefail

usage() {
  cat <<'END'
usage: jobscripts/sweep.sh DECK key=v1,v2,... [key2=...]... [-- options of `voltapile submit`]

  jobscripts/sweep.sh deck.toml optimizer.lr=1e-3,5e-4 run.seed=1,2,3 -- --time 4h
  jobscripts/sweep.sh --at-once 2 ...        # no more than two combinations at a time
  jobscripts/sweep.sh --dry ...              # says what it would submit
  jobscripts/sweep.sh --table runs/sweeps/NAME    # the table before the end

Keys are those of the deck; commas inside brackets or quotes do not divide. Each combination is a
run of its own, whose name follows from its values: the same line again continues what is
unfinished. Nothing is submitted unless every combination is valid and fits. When the array has
ended, the table is in runs/sweeps/NAME/table.txt.
END
}

fail() {
  printf "%s\n" "$@" >&2
  exit 2
}

# split_values TEXT: into `values`.
split_values() {
  local text=$1 depth=0 quote='' word='' c i
  values=()
  for ((i = 0; i < ${#text}; ++i)); do
    c=${text:i:1}
    if [ -n "$quote" ]; then
      [ "$c" != "$quote" ] || quote=''
    elif [[ $c == [\"\'] ]]; then
      quote=$c
    elif [ "$c" = '[' ]; then
      depth=$((depth + 1))
    elif [ "$c" = ']' ]; then
      depth=$((depth - 1))
    elif [ "$c" = , ] && [ $depth = 0 ]; then
      values+=("$word")
      word=''
      continue
    fi
    word+=$c
  done
  values+=("$word")
}

digest() { sha256sum | cut -c 1-10; }

# combine POSITION [key=value]...: calls add_point with each combination.
combine() {
  local position=$1 value
  shift
  if [ "$position" = ${#keys[@]} ]; then
    add_point "$@"
    return
  fi
  split_values "${lists[position]}"
  for value in "${values[@]}"; do combine $((position + 1)) "$@" "${keys[position]}=$value"; done
}

# One combination: checked, and noted for the array and for the table.
add_point() {
  local setting name readable='' code=0 status line words=()
  for setting in "$@"; do
    words+=(--set "$setting")
    readable+=_${setting#*.}
  done
  # Readable as far as a folder's name may be, unique by the digest of the exact values.
  readable=$(tr -c 'A-Za-z0-9.+_\n-' - <<<"$readable")
  name=$base${readable:0:80}_$(printf "%s\n" "$@" | digest)
  words+=(--set "run.name=$name")
  if grep -qxF "$name" <<<"$names"; then fail "The same combination twice: $*"; fi
  names+=$'\n'$name
  if ! line=$("$voltapile" submit "$deck" --queue slurm "${words[@]}" "${options[@]}" 2>&1); then
    problems+=("$*:" "$line")
    return
  fi
  line=$(tail -n 1 <<<"$line")
  [[ $line =~ --ntasks=([0-9]+) ]]
  ranks+=" ${BASH_REMATCH[1]}"
  if [[ $line =~ --mem=([0-9]+)M ]] && [ "${BASH_REMATCH[1]}" -gt "$most_memory" ]; then
    most_memory=${BASH_REMATCH[1]}
    heaviest=("${words[@]}")
  fi
  status=$("$voltapile" status "$deck" "${words[@]}") || code=$?
  case $code in
    0 | 75) ;;
    *) fail "No status of $*." ;;
  esac
  points+="$(printf "%q " "${words[@]}")"$'\n'
  table+="$(sed -n 's/^folder  *//p' <<<"$status")"$'\t'
  table+="$(sed -n 's/^steps  *//p' <<<"$status")"$'\t'"$*"$'\n'
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tool=$here/sweep_table.py

deck='' at_once='' dry=no keys=() lists=() options=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --table) exec python3 "$tool" "${2:?--table FOLDER}" ;;
    --at-once) at_once=%${2:?--at-once N} && shift ;;
    --dry) dry=yes ;;
    --)
      shift
      options=("$@")
      break
      ;;
    -*) usage >&2 && exit 2 ;;
    *=*)
      keys+=("${1%%=*}")
      lists+=("${1#*=}")
      ;;
    *)
      [ -z "$deck" ] || fail "Two decks: $deck and $1."
      deck=$1
      ;;
  esac
  shift
done
if [ -z "$deck" ] || [ ${#keys[@]} = 0 ]; then usage >&2 && exit 2; fi

# shellcheck source=jobscripts/run_job.sh
. "$here/run_job.sh"
find_program
export VOLTAPILE_JOBSCRIPTS=${VOLTAPILE_JOBSCRIPTS:-$here} # VOLTAPILE may lie anywhere
code=0
first=$("$voltapile" status "$deck") || code=$?
case $code in 0 | 75) ;; *) exit $code ;; esac
base=$(sed -n 's/^name  *//p' <<<"$first")
runs=$(dirname "$(sed -n 's/^folder  *//p' <<<"$first")")

names='' points='' table='' ranks='' problems=() most_memory=0 heaviest=()
combine 0
[ ${#problems[@]} = 0 ] || fail "${problems[@]}" "Nothing was submitted."
ranks=$(tr ' ' '\n' <<<"$ranks" | sed '/^$/d' | sort -un)
[ "$(wc -l <<<"$ranks")" = 1 ] || fail "The combinations need different numbers of ranks, and the" \
  "tasks of one array cannot: sweep each mesh apart (here: $(tr '\n' ' ' <<<"$ranks")ranks)."

folder=$runs/sweeps/${base}_$(printf "%s" "$points" | digest)
if [ $dry = no ]; then
  mkdir -p "$folder"
  folder=$(cd "$folder" && pwd)
  printf "%s" "$points" >"$folder/points"
  printf "%s" "$table" >"$folder/runs.tsv"
fi
count=$(wc -l <<<"${points%$'\n'}")
# The name of the job is the sweep's; the array's own line of `points` names the run.
line=("$voltapile" submit "$deck" --queue slurm "${heaviest[@]}" "${options[@]}"
  --more=--job-name="$base" --more=--array="0-$((count - 1))$at_once" --more=--parsable
  --more=--output="$folder/%a.log" --more=--export="ALL,VOLTAPILE_SWEEP=$folder/points")
if [ $dry = yes ]; then
  printf "%s" "$table"
  "${line[@]}"
  exit 0
fi
answer=$("${line[@]}" --go) || exit $?
job=$(tail -n 1 <<<"$answer")
job=${job%%;*} # the cluster's name may follow
# Same partition and account as the array, and next to no resources.
small=()
for option in partition account; do
  if [[ $answer =~ (--$option=[^ ]+) ]]; then small+=("${BASH_REMATCH[1]}"); fi
done
sbatch --parsable "${small[@]}" --dependency="afterany:$job" --ntasks=1 --mem=512M --time=5 \
  --job-name="$base-table" --output="$folder/table.txt" \
  --wrap "exec python3 $(printf %q "$tool") $(printf %q "$folder")" >/dev/null
printf "%s\n" "$count combinations are job array $job; logs and the table at the end:" "  $folder"
