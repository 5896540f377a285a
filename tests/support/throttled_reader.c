// Preloaded into a process, makes a file system slow: a read of a file whose name begins with THROTTLED_FOLDER takes
// as long as THROTTLED_RATE (bytes a second) allows, asleep, whether or not the file is in the page cache.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static void throttle(int file, ssize_t bytes) {
  if (bytes <= 0) {
    return;
  }
  char link[32], name[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, name, sizeof(name) - 1);
  if (length <= 0) {
    return;
  }
  name[length] = 0;
  const char* folder = getenv("THROTTLED_FOLDER");
  if (strncmp(name, folder, strlen(folder)) != 0) {
    return;
  }
  const double seconds = (double)bytes / atof(getenv("THROTTLED_RATE"));
  const struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&pause, NULL);
}

ssize_t read(int file, void* buffer, size_t size) {
  const ssize_t bytes = ((ssize_t(*)(int, void*, size_t))dlsym(RTLD_NEXT, "read"))(file, buffer, size);
  throttle(file, bytes);
  return bytes;
}

#define PREAD(name)                                                                                              \
  ssize_t name(int file, void* buffer, size_t size, off_t offset) {                                              \
    const ssize_t bytes =                                                                                        \
        ((ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, #name))(file, buffer, size, offset);            \
    throttle(file, bytes);                                                                                       \
    return bytes;                                                                                                \
  }
PREAD(pread)
PREAD(pread64)
