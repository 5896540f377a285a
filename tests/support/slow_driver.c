// A CUDA driver of four GPUs for tests of where time goes: cuInit sleeps for INIT_MS milliseconds, and each context for
// CONTEXT_MS, one after another as the real one makes them.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define DRIVER __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void sleep_in_turn(const char* milliseconds) {
  pthread_mutex_lock(&lock);
  usleep((useconds_t)atoi(getenv(milliseconds)) * 1000);
  pthread_mutex_unlock(&lock);
}
static pthread_once_t started = PTHREAD_ONCE_INIT;
static void start(void) { sleep_in_turn("INIT_MS"); }

DRIVER int cuInit(unsigned flags) {
  (void)flags;
  pthread_once(&started, start);
  return 0;
}
DRIVER int cuDeviceGet(int* handle, int index) {
  *handle = index;
  return index < 4 ? 0 : 101;
}
DRIVER int cuDevicePrimaryCtxRetain(void** context, int handle) {
  sleep_in_turn("CONTEXT_MS");
  *context = (void*)(intptr_t)(handle + 1);
  return 0;
}
