// Preloaded into a process, makes calls of the system fail. faults_arm() chooses the call that fails, how and when;
// FAULTS="operation:error:first:count:path" does the same from a process's start. Calls on files count where the file's
// path contains `path`; memfd_create, ftruncate and pthread_create count always.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#define SHORT -1  // as an error: fewer bytes than asked for

static char operation[32], path_part[512];
static int error;
static atomic_long first, count, calls, failures;

// Calls `first` to `first + count - 1` fail, counted from 1. With EINTR every second one of them.
__attribute__((visibility("default"))) void faults_arm(const char* name, int number, long from, long how_many,
                                                       const char* path) {
  operation[0] = 0;
  calls = failures = 0;
  error = number;
  first = from;
  count = how_many;
  snprintf(path_part, sizeof path_part, "%s", path);
  snprintf(operation, sizeof operation, "%s", name);
}
__attribute__((visibility("default"))) long faults_calls(void) { return calls; }
__attribute__((visibility("default"))) long faults_failures(void) { return failures; }

__attribute__((constructor)) static void arm_from_environment(void) {
  const char* text = getenv("FAULTS");
  char name[32] = "", path[512] = "";
  int number = 0;
  long from = 0, how_many = 0;
  if (text != NULL && sscanf(text, "%31[^:]:%d:%ld:%ld:%511s", name, &number, &from, &how_many, path) >= 4) {
    faults_arm(name, number, from, how_many, path);
  }
}

// Whether this call fails; the error is in errno. `short_possible`: it may instead do a part.
static int fails(const char* name, const char* path) {
  if (strcmp(operation, name) != 0 || (path != NULL && strstr(path, path_part) == NULL)) {
    return 0;
  }
  const long number = ++calls;
  if (number < first || number - first >= count || (error == EINTR && (number - first) % 2 != 0)) {
    return 0;
  }
  ++failures;
  errno = error;
  return 1;
}

static int fails_on(const char* name, int descriptor) {
  if (strcmp(operation, name) != 0) {
    return 0;
  }
  char link[64], path[512];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) {
    return 0;
  }
  path[length] = 0;
  return fails(name, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define TRANSFER(name, operation_name, buffer_type, ...)                   \
  if (fails_on(operation_name, descriptor)) {                              \
    if (error != SHORT) {                                                  \
      return -1;                                                           \
    }                                                                      \
    size = size > 1 ? size / 2 : size;                                     \
  }                                                                        \
  return REAL(name)(descriptor, buffer, size __VA_ARGS__)

ssize_t read(int descriptor, void* buffer, size_t size) { TRANSFER(read, "read", void*); }
ssize_t write(int descriptor, const void* buffer, size_t size) { TRANSFER(write, "write", const void*); }
ssize_t pread(int descriptor, void* buffer, size_t size, off_t offset) { TRANSFER(pread, "pread", void*, , offset); }
ssize_t pread64(int descriptor, void* buffer, size_t size, off64_t offset) {
  TRANSFER(pread64, "pread", void*, , offset);
}

#define MAP(name, offset_type)                                                                              \
  void* name(void* address, size_t size, int protection, int flags, int descriptor, offset_type offset) {   \
    if (descriptor >= 0 && fails_on("mmap", descriptor)) {                                                  \
      return MAP_FAILED;                                                                                    \
    }                                                                                                       \
    return REAL(name)(address, size, protection, flags, descriptor, offset);                                \
  }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

int ftruncate(int descriptor, off_t size) {
  return fails("ftruncate", NULL) ? -1 : REAL(ftruncate)(descriptor, size);
}
int ftruncate64(int descriptor, off64_t size) {
  return fails("ftruncate", NULL) ? -1 : REAL(ftruncate64)(descriptor, size);
}
int rename(const char* from, const char* to) { return fails("rename", from) ? -1 : REAL(rename)(from, to); }
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return fails("rename", from) ? -1 : REAL(renameat)(from_folder, from, to_folder, to);
}
int memfd_create(const char* name, unsigned flags) {
  return fails("memfd_create", NULL) ? -1 : REAL(memfd_create)(name, flags);
}

#define OPEN(name, folder_parameter, folder_argument)                                       \
  int name(folder_parameter const char* path, int flags, ...) {                             \
    va_list arguments;                                                                      \
    va_start(arguments, flags);                                                             \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;      \
    va_end(arguments);                                                                      \
    return fails("open", path) ? -1 : REAL(name)(folder_argument path, flags, mode);        \
  }
#define NOTHING
#define FOLDER_PARAMETER int folder,
#define FOLDER_ARGUMENT folder,
OPEN(open, NOTHING, NOTHING)
OPEN(open64, NOTHING, NOTHING)
OPEN(openat, FOLDER_PARAMETER, FOLDER_ARGUMENT)
OPEN(openat64, FOLDER_PARAMETER, FOLDER_ARGUMENT)

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  return fails("pthread_create", NULL) ? error : REAL(pthread_create)(thread, attributes, body, argument);
}
