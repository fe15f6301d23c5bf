/* Launches of kernels with checks: each gets one more parameter, which `launch_hook` fills.

   Built twice. The process library (libunfix_launches.so) has the logic. The archive
   (libunfix_launches.a, -DSHIM) is linked into each checked module: its hidden functions take the
   place of libcudart's for that module alone, and call the process library. Everything else of
   libcudart is the real one. */

#define _GNU_SOURCE
#include "launch_checks.h"

typedef struct {
  Dim3 grid, block;
  size_t shared;
  Stream stream;
  Attribute *attributes;
  unsigned attribute_count;
} LaunchConfiguration;

#ifdef SHIM
#define HIDDEN __attribute__((visibility("hidden")))
#define FORWARD(type, name, parameters, arguments) \
  type unfix_##name parameters;                    \
  HIDDEN type name parameters { return unfix_##name arguments; }
FORWARD(void **, __cudaRegisterFatBinary, (void *wrapper), (wrapper))
HIDDEN void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name,
                                   int limit, void *tid, void *bid, void *block, void *grid,
                                   int *warp_size);
void unfix___cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *,
                                  void *, void *, int *);
void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name,
                            int limit, void *tid, void *bid, void *block, void *grid,
                            int *warp_size) {
  unfix___cudaRegisterFunction(module, host, device, name, limit, tid, bid, block, grid, warp_size);
}
FORWARD(Error, __cudaGetKernel, (void **kernel, const void *function), (kernel, function))
FORWARD(Error, cudaLaunchKernel,
        (const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
         Stream stream),
        (function, grid, block, arguments, shared, stream))
FORWARD(Error, __cudaLaunchKernel,
        (const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
         Stream stream),
        (function, grid, block, arguments, shared, stream))
FORWARD(Error, cudaLaunchCooperativeKernel,
        (const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
         Stream stream),
        (function, grid, block, arguments, shared, stream))
FORWARD(Error, cudaLaunchKernelExC,
        (const LaunchConfiguration *configuration, const void *function, void **arguments),
        (configuration, function, arguments))
#else

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fills `checks`, and may launch something in front on `stream`; returns the number of the kernel's
   own parameters, -1 for a kernel that has no checks, -2 for one that must not be launched. */
typedef int (*LaunchHook)(const char *entry, const void *fatbin, void **arguments,
                          const Dim3 *sides, void *checks, Stream stream);
static LaunchHook launch_hook;
/* Whether a checked launch waits for the whole launch in front of it: what numbers it for races. */
static int waits_for_launches;

void unfix_set_launch_hook(LaunchHook hook, int waits) {
  waits_for_launches = waits;
  launch_hook = hook;
}

static void *find_real(const char *name) {
  void *library = dlopen(CUDART_NAME, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) library = dlopen(CUDART_NAME, RTLD_LAZY);
  void *function = library ? dlsym(library, name) : NULL;
  if (!function) {
    fprintf(stderr, "unfix: %s has no %s\n", CUDART_NAME, name);
    abort();
  }
  return function;
}
#define REAL(type, name, parameters)                          \
  static type(*real) parameters;                              \
  if (!real) real = (type(*) parameters)find_real(name);

/* The kernels by the keys that host code launches them by: their host function, or a handle. */

typedef struct { const void *key, *fatbin; const char *name; } Kernel;
static Kernel *kernels;
static size_t kernel_count, kernel_capacity;
typedef struct { void **handle; const void *fatbin; } Module;
static Module *modules;
static size_t module_count, module_capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add_kernel(Kernel kernel) {
  if (kernel_count == kernel_capacity) {
    kernel_capacity = kernel_capacity ? 2 * kernel_capacity : 256;
    kernels = realloc(kernels, kernel_capacity * sizeof(Kernel));
  }
  kernels[kernel_count++] = kernel;
}

static Kernel find_kernel(const void *key) {
  Kernel found = {0};
  pthread_mutex_lock(&lock);
  for (size_t i = kernel_count; i-- > 0 && !found.key;)
    if (kernels[i].key == key) found = kernels[i];
  pthread_mutex_unlock(&lock);
  return found;
}

void **unfix___cudaRegisterFatBinary(void *wrapper) {
  REAL(void **, "__cudaRegisterFatBinary", (void *))
  void **handle = real(wrapper);
  pthread_mutex_lock(&lock);
  if (module_count == module_capacity) {
    module_capacity = module_capacity ? 2 * module_capacity : 64;
    modules = realloc(modules, module_capacity * sizeof(Module));
  }
  modules[module_count++] = (Module){handle, ((void **)wrapper)[1]};
  pthread_mutex_unlock(&lock);
  return handle;
}

void unfix___cudaRegisterFunction(void **module, const char *host, char *device, const char *name,
                                  int limit, void *tid, void *bid, void *block, void *grid,
                                  int *warp_size) {
  REAL(void, "__cudaRegisterFunction",
       (void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *))
  real(module, host, device, name, limit, tid, bid, block, grid, warp_size);
  pthread_mutex_lock(&lock);
  for (size_t i = module_count; i-- > 0;)
    if (modules[i].handle == module) {
      add_kernel((Kernel){host, modules[i].fatbin, name});
      break;
    }
  pthread_mutex_unlock(&lock);
}

Error unfix___cudaGetKernel(void **kernel, const void *function) {
  REAL(Error, "__cudaGetKernel", (void **, const void *))
  Error error = real(kernel, function);
  if (error) return error;
  Kernel known = find_kernel(function);
  if (known.key && *kernel != function && !find_kernel(*kernel).key) {
    known.key = *kernel;
    pthread_mutex_lock(&lock);
    add_kernel(known);
    pthread_mutex_unlock(&lock);
  }
  return error;
}

/* Launches */

static __thread int is_handled;

int unfix_is_handled(void) { return is_handled; }

void **unfix_add_checks(const char *name, const void *image, void **arguments, Dim3 grid, Dim3 block,
                        Stream stream, Checked *room) {
  if (!launch_hook) {
    fprintf(stderr, "unfix: %s was built with checks, and this process has none\n", name);
    return NULL;
  }
  Dim3 sides[2] = {grid, block};
  int count = launch_hook(name, image, arguments, sides, room->checks, stream);
  if (count == -1) return arguments;
  if (count < 0 || count > MAX_PARAMETERS) return NULL;
  memcpy(room->arguments, arguments, (size_t)count * sizeof(void *));
  room->arguments[count] = room->checks;
  return room->arguments;
}

/* Without programmatic dependent launch (PDL): a kernel that need not wait for the one in front of
   it waits all the same, and computes what it would. */
int unfix_keep_attributes(const char *name, const Attribute *attributes, unsigned count,
                          Attribute *kept) {
  if (count > MAX_ATTRIBUTES) {
    fprintf(stderr, "unfix: %s is not launched: it has %u launch attributes, and with checks a "
            "launch may have %d\n", name, count, MAX_ATTRIBUTES);
    return -1;
  }
  int left = 0;
  for (unsigned i = 0; i < count; ++i)
    if (!waits_for_launches || attributes[i].id != PROGRAMMATIC_STREAM_SERIALIZATION)
      kept[left++] = attributes[i];
  return left;
}

static void **add_checks(Kernel kernel, void **arguments, Dim3 grid, Dim3 block, Stream stream,
                         Checked *room) {
  if (!kernel.key) return arguments;
  return unfix_add_checks(kernel.name, kernel.fatbin, arguments, grid, block, stream, room);
}

#define LAUNCH(name)                                                                              \
  Error unfix_##name(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared, \
                     Stream stream) {                                                             \
    REAL(Error, #name, (const void *, Dim3, Dim3, void **, size_t, Stream))                       \
    Checked room;                                                                                 \
    Kernel kernel = find_kernel(function);                                                        \
    void **given = add_checks(kernel, arguments, grid, block, stream, &room);                     \
    if (!given) return NOT_SUPPORTED;                                                             \
    is_handled = kernel.key != NULL;                                                              \
    Error error = real(function, grid, block, given, shared, stream);                             \
    is_handled = 0;                                                                               \
    return error;                                                                                 \
  }
LAUNCH(cudaLaunchKernel)
LAUNCH(__cudaLaunchKernel)
LAUNCH(cudaLaunchCooperativeKernel)

Error unfix_cudaLaunchKernelExC(const LaunchConfiguration *configuration, const void *function,
                                void **arguments) {
  REAL(Error, "cudaLaunchKernelExC", (const LaunchConfiguration *, const void *, void **))
  Checked room;
  Kernel kernel = find_kernel(function);
  void **given = add_checks(kernel, arguments, configuration->grid, configuration->block,
                            configuration->stream, &room);
  if (!given) return NOT_SUPPORTED;
  LaunchConfiguration changed = *configuration;
  Attribute attributes[MAX_ATTRIBUTES];
  if (given != arguments && waits_for_launches) {
    int left = unfix_keep_attributes(kernel.name, changed.attributes, changed.attribute_count,
                                     attributes);
    if (left < 0) return NOT_SUPPORTED;
    changed.attributes = attributes;
    changed.attribute_count = (unsigned)left;
  }
  is_handled = kernel.key != NULL;
  Error error = real(&changed, function, given);
  is_handled = 0;
  return error;
}
#endif
