// A library to preload into a program: kills the rank VOLTAPILE_KILL_RANK, as kill -9 does, when it
// makes call number VOLTAPILE_KILL_COUNT of the function VOLTAPILE_KILL_CALL.
#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS  // both names of pwrite are wanted
#include <dlfcn.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long made;

static void arrive(const char* call) {
  const char* wanted = getenv("VOLTAPILE_KILL_CALL");
  const char* victim = getenv("VOLTAPILE_KILL_RANK");
  const char* count = getenv("VOLTAPILE_KILL_COUNT");
  const char* self = getenv("OMPI_COMM_WORLD_RANK");
  if (!wanted || !victim || !count || !self || strcmp(wanted, call) || strcmp(victim, self)) return;
  if (__atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST) == atol(count)) kill(getpid(), SIGKILL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  arrive("MPI_Comm_split");
  return REAL(MPI_Comm_split)(comm, color, key, part);
}
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  arrive("MPI_Isend");
  return REAL(MPI_Isend)(data, count, type, to, tag, comm, request);
}
int MPI_Finalize(void) {
  arrive("MPI_Finalize");
  return REAL(MPI_Finalize)();
}
int fsync(int file) {
  arrive("fsync");
  return REAL(fsync)(file);
}
ssize_t pwrite64(int file, const void* data, size_t bytes, off64_t offset) {
  arrive("pwrite");
  return REAL(pwrite64)(file, data, bytes, offset);
}
ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  arrive("pwrite");
  return REAL(pwrite)(file, data, bytes, offset);
}
int rename(const char* from, const char* to) {
  arrive("rename");
  return REAL(rename)(from, to);
}
