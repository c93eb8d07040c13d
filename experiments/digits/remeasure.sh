#!/bin/sh
# Measures every published row of digits again with the code that is here, and renews results/
# and the tables of README.md:
#
#     sh experiments/digits/remeasure.sh [RUNS AT THE SAME TIME]
#
# It says for each row how it compares with what was published. What was cut off goes on when it
# is started again.
set -e
cd "$(dirname "$0")/../.."
out=runs/digits-again
status=0
fetchsgd reproduce 'digits-*' --out $out --jobs "${1:-1}" || status=$?
if [ $status -gt 1 ]; then exit $status; fi # 1: rows differ, which is why they are measured
for file in results/digits-*.jsonl; do
    name=$(basename "$file" .jsonl)
    fetchsgd report "$out/$name" --out "$out/$name.html" --results "$file"
done
cp $out/digits-low-bit-digits-frontiers.png results/digits-low-bit-frontiers.png
python experiments/table.py --write experiments/digits/README.md
