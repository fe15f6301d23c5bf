/* Counts the launches of this process by the kernel's name, whatever library makes them.

   CUPTI calls `count_launch` in front of each launch that the driver gets; a captured launch counts
   once, at its capture. CUPTI has room for one subscriber, and may have another one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVER_API = 1, ENTER = 0, MAX_CALLBACK = 2048, SLOT_COUNT = 1 << 14, NO_FUNCTION = -1 };

typedef struct {
  int site;
  const char *function;
  const void *parameters;
  void *result;
  const char *symbol;
} CallbackData;
typedef void (*Callback)(void *, int, uint32_t, const CallbackData *);

static struct { char *name; uint64_t count; } slots[SLOT_COUNT];
static uint64_t lost; /* launches of kernels for which no slot was left */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void count_launch(void *own, int domain, uint32_t id, const CallbackData *data) {
  if (data->site != ENTER || !data->symbol) return;
  uint64_t hash = 1469598103934665603u;
  for (const char *at = data->symbol; *at; ++at) hash = (hash ^ (unsigned char)*at) * 1099511628211u;
  pthread_mutex_lock(&lock);
  size_t tries = 0, slot = hash % SLOT_COUNT;
  while (tries < SLOT_COUNT && slots[slot].name && strcmp(slots[slot].name, data->symbol)) {
    slot = (slot + 1) % SLOT_COUNT;
    ++tries;
  }
  if (tries == SLOT_COUNT) {
    ++lost;
  } else {
    if (!slots[slot].name) slots[slot].name = strdup(data->symbol);
    ++slots[slot].count;
  }
  pthread_mutex_unlock(&lock);
}

/* Returns 0, CUPTI's error, or -1 for a library that is not CUPTI. */
int unfix_count_launches(const char *cupti) {
  void *library = dlopen(cupti, RTLD_LAZY);
  if (!library) return NO_FUNCTION;
  int (*subscribe)(void **, Callback, void *) = dlsym(library, "cuptiSubscribe");
  int (*enable)(uint32_t, void *, int, uint32_t) = dlsym(library, "cuptiEnableCallback");
  int (*find_name)(int, uint32_t, const char **) = dlsym(library, "cuptiGetCallbackName");
  if (!subscribe || !enable || !find_name) return NO_FUNCTION;
  void *subscriber;
  int error = subscribe(&subscriber, count_launch, NULL);
  for (uint32_t id = 1; id < MAX_CALLBACK && !error; ++id) {
    const char *name = NULL;
    if (find_name(DRIVER_API, id, &name) || !name) continue;
    if (!strncmp(name, "cuLaunchKernel", 14) || !strncmp(name, "cuLaunchCooperativeKernel", 25))
      error = enable(1, subscriber, DRIVER_API, id);
  }
  return error;
}

/* Writes "count name" lines; returns the bytes that all of them need. */
size_t unfix_read_launch_counts(char *buffer, size_t size) {
  size_t used = 0;
  char line[4096];
  pthread_mutex_lock(&lock);
  for (size_t slot = 0; slot <= SLOT_COUNT; ++slot) {
    const char *name = slot < SLOT_COUNT ? slots[slot].name : "kernels that are not listed";
    uint64_t count = slot < SLOT_COUNT ? slots[slot].count : lost;
    if (!name || !count) continue;
    int length = snprintf(line, sizeof line, "%llu %s\n", (unsigned long long)count, name);
    if (length >= (int)sizeof line) {
      length = sizeof line - 1;
      line[length - 1] = '\n';
    }
    if (used + length <= size) memcpy(buffer + used, line, length);
    used += length;
  }
  pthread_mutex_unlock(&lock);
  return used;
}
