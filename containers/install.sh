#!/bin/sh
# Installs plm-embed with both executors into the Python that is first on PATH, as the images do: containers/install.sh cpu|cuda
# Run it in the root of a clone. The pins are those of requirements/.
set -eu
device=${1:?cpu or cuda}
# where the small, CPU-only build of torch lies; if it is out of reach, the default index's build does
index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
pip() { python -m pip --no-cache-dir --disable-pip-version-check "$@"; }

test "$device" = cuda || pip install --no-deps --retries 0 --index-url "$index" "$(grep ^torch= requirements/cpu.txt)" ||
  echo "no torch from $index: taking the one of the default index"
pip install --requirement "requirements/$device.txt"
pip install --no-deps . executors/pbs executors/slurm
pip check
plm-embed --version
snakemake --version
