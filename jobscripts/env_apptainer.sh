# shellcheck shell=bash
# An example for a program that lives in an Apptainer (Singularity) image, say one that was built by
# packaging/apptainer.def. Copy it, edit it, and
#   export VOLTAPILE_ENV=/path/to/my_env.sh
# before sbatch: the job's `voltapile` is then the container's, and everything else, srun and mpirun
# included, is the host's. So the MPI in the image must speak the host's PMIx: the same major series
# of Open MPI (4.1 with 4.1, 5 with 5).

image=$HOME/voltapile.sif

# A command in a file, not a function: ranks are started on other nodes too.
commands=$HOME/.voltapile_commands # in a folder that all nodes see
mkdir -p "$commands"
cat >"$commands/voltapile.$$" <<END
#!/bin/sh
# --nv brings the host's driver in; --bind what a deck names outside of home and the current folder.
exec apptainer exec --nv --bind /scratch "$image" voltapile "\$@"
END
chmod +x "$commands/voltapile.$$"
mv "$commands/voltapile.$$" "$commands/voltapile" # at once: another job may be reading it
export VOLTAPILE=$commands/voltapile
