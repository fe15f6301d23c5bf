/* The library `libcuda.so.1` of a process under check: the driver, with checks in its launches.

   It is loaded first, so whoever asks for libcuda.so.1 gets it, and depends on the real driver by
   its path: a function that is not here is found there. A module whose image holds the marker of
   checks is remembered with its kernels; a launch of one gets one more parameter (`launch_checks.c`).
   Launches that a module's own host code makes through the CUDA runtime come here with it. */

#define _GNU_SOURCE
#include "launch_checks.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MARKER_LENGTH = 14, KEY_LENGTH = 32, HEADER_BYTES = 16 };
enum { WRAPPER_MAGIC = 0x466243b1, PER_THREAD_STREAM = 2 };
static const char marker[] = "unfix_checked_";
static const uint32_t fatbin_magic = 0xba55ed50u;

static void *find_real(const char *name) {
  static void *library;
  if (!library) library = dlopen(REAL_DRIVER, RTLD_LAZY);
  return library ? dlsym(library, name) : NULL;
}
#define REAL(name, parameters)                                                                    \
  static Error(*real) parameters;                                                                 \
  if (!real) real = (Error(*) parameters)find_real(name);                                         \
  if (!real) return NOT_SUPPORTED;

/* Called in front of the first module with checks that the driver loads. A thread that loads one
   meanwhile calls it, too: its launches need what the hook sets. */
static void (*start_hook)(void);
static int has_started;
void unfix_set_start_hook(void (*hook)(void)) { start_hook = hook; }

static void start_checks(void) {
  if (!start_hook || __atomic_load_n(&has_started, __ATOMIC_ACQUIRE)) return;
  start_hook();
  __atomic_store_n(&has_started, 1, __ATOMIC_RELEASE);
}

/* Markers */

static size_t measure_elf(const unsigned char *image) {
  const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
  size_t size = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
  for (int i = 0; i < head->e_shnum; ++i) {
    const Elf64_Shdr *section = (const Elf64_Shdr *)(image + head->e_shoff) + i;
    size_t end = section->sh_offset + section->sh_size;
    if (section->sh_type != SHT_NOBITS && end > size) size = end;
  }
  return size;
}

/* Returns the image's bytes. */
static size_t measure_image(const unsigned char **image) {
  uint32_t magic;
  memcpy(&magic, *image, sizeof magic);
  if (magic == WRAPPER_MAGIC) {
    *image = *(const unsigned char **)(*image + 8);
    memcpy(&magic, *image, sizeof magic);
  }
  if (magic == fatbin_magic) {
    uint16_t header;
    uint64_t size;
    memcpy(&header, *image + 6, sizeof header);
    memcpy(&size, *image + 8, sizeof size);
    return header + size;
  }
  if (!memcmp(*image, ELFMAG, SELFMAG)) return measure_elf(*image);
  return strlen((const char *)*image);
}

/* Returns a header as of a fatbin with an image's markers behind it, NULL if it has none. */
static char *copy_markers(const void *start, size_t size) {
  char *found = NULL;
  size_t used = 0, length = MARKER_LENGTH + KEY_LENGTH;
  const char *at = start, *end = at + size;
  while ((at = memmem(at, (size_t)(end - at), marker, MARKER_LENGTH))) {
    if ((size_t)(end - at) < length) break;
    if (!used || !memmem(found + HEADER_BYTES, used, at, length)) {
      found = realloc(found, HEADER_BYTES + used + length);
      memcpy(found + HEADER_BYTES + used, at, length);
      used += length;
    }
    at += length;
  }
  if (!used) return NULL;
  uint16_t numbers[2] = {0, HEADER_BYTES}; /* a version that no fatbin has */
  uint64_t bytes = used;
  memcpy(found, &fatbin_magic, 4);
  memcpy(found + 4, numbers, 4);
  memcpy(found + 8, &bytes, 8);
  return found;
}

/* Modules, libraries and kernels, by the driver's handles of them */

typedef struct Handle {
  struct Handle *next;
  const void *key;
  char *image, *name; /* the name of a kernel; an image stays, since graphs may still launch it */
  int is_library_kernel;
} Handle;
enum { BUCKET_COUNT = 1 << 12 };
static Handle *buckets[BUCKET_COUNT];
static unsigned handle_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Handle **find_bucket(const void *key) {
  uint64_t hash = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15u;
  return &buckets[hash >> 52 & (BUCKET_COUNT - 1)];
}

static Handle find_handle(const void *key) {
  Handle found = {0};
  if (!__atomic_load_n(&handle_count, __ATOMIC_ACQUIRE)) return found;
  pthread_mutex_lock(&lock);
  for (Handle *one = *find_bucket(key); one; one = one->next)
    if (one->key == key) found = *one;
  pthread_mutex_unlock(&lock);
  return found;
}

/* Remembers what a handle is; without an image, that it is none of ours any longer. */
static void note_handle(const void *key, char *image, const char *name, int is_library_kernel) {
  pthread_mutex_lock(&lock);
  Handle **place = find_bucket(key);
  while (*place && (*place)->key != key) place = &(*place)->next;
  if (*place && !image) {
    Handle *old = *place;
    *place = old->next;
    free(old); /* not its name, which a launch in another thread may still read */
    __atomic_sub_fetch(&handle_count, 1, __ATOMIC_RELEASE);
  } else if (image) {
    if (!*place) {
      *place = calloc(1, sizeof(Handle));
      __atomic_add_fetch(&handle_count, 1, __ATOMIC_RELEASE);
    }
    (*place)->key = key;
    (*place)->image = image;
    if (!name || !(*place)->name || strcmp(name, (*place)->name))
      (*place)->name = name ? strdup(name) : NULL;
    (*place)->is_library_kernel = is_library_kernel;
  }
  pthread_mutex_unlock(&lock);
}

static void note_kernel(const void *kernel, const void *owner, const char *name, int of_library) {
  note_handle(kernel, find_handle(owner).image, name, of_library);
}

/* Loading */

static char *read_markers(const void *data) {
  const unsigned char *image = data;
  size_t size = image ? measure_image(&image) : 0;
  char *found = size ? copy_markers(image, size) : NULL;
  if (found) start_checks();
  return found;
}

static char *read_file_markers(const char *file) {
  char *found = NULL;
  struct stat status;
  int opened = open(file, O_RDONLY | O_CLOEXEC);
  if (opened >= 0 && !fstat(opened, &status) && status.st_size > 0) {
    size_t size = (size_t)status.st_size;
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, opened, 0);
    if (data != MAP_FAILED) {
      found = copy_markers(data, size);
      munmap(data, size);
    }
  }
  if (opened >= 0) close(opened);
  if (found) start_checks();
  return found;
}

static Error note_loaded(Error error, void **handle, char *image) {
  if (!error) note_handle(*handle, image, NULL, 0);
  if (error) free(image);
  return error;
}

#define LOAD(api, reader, parameters, arguments)                                                  \
  Error api parameters {                                                                          \
    REAL(#api, parameters)                                                                        \
    char *markers = reader(image);                                                                \
    return note_loaded(real arguments, handle, markers);                                          \
  }
LOAD(cuModuleLoad, read_file_markers, (void **handle, const char *image), (handle, image))
LOAD(cuModuleLoadData, read_markers, (void **handle, const void *image), (handle, image))
LOAD(cuModuleLoadFatBinary, read_markers, (void **handle, const void *image), (handle, image))
LOAD(cuModuleLoadDataEx, read_markers,
     (void **handle, const void *image, unsigned count, int *options, void **values),
     (handle, image, count, options, values))
LOAD(cuLibraryLoadData, read_markers,
     (void **handle, const void *image, int *jit, void **jit_values, unsigned jit_count,
      int *options, void **values, unsigned count),
     (handle, image, jit, jit_values, jit_count, options, values, count))
LOAD(cuLibraryLoadFromFile, read_file_markers,
     (void **handle, const char *image, int *jit, void **jit_values, unsigned jit_count,
      int *options, void **values, unsigned count),
     (handle, image, jit, jit_values, jit_count, options, values, count))

#define UNLOAD(api)                                                                               \
  Error api(void *handle) {                                                                       \
    REAL(#api, (void *))                                                                          \
    Handle known = find_handle(handle); /* forgotten first: the next load may get this handle */  \
    note_handle(handle, NULL, NULL, 0);                                                           \
    Error error = real(handle);                                                                   \
    if (error && known.image) note_handle(handle, known.image, known.name, 0);                    \
    return error;                                                                                 \
  }
UNLOAD(cuModuleUnload)
UNLOAD(cuLibraryUnload)

Error cuModuleGetFunction(void **function, void *module, const char *name) {
  REAL("cuModuleGetFunction", (void **, void *, const char *))
  Error error = real(function, module, name);
  if (!error) note_kernel(*function, module, name, 0);
  return error;
}

Error cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  REAL("cuLibraryGetKernel", (void **, void *, const char *))
  Error error = real(kernel, library, name);
  if (!error) note_kernel(*kernel, library, name, 1);
  return error;
}

Error cuLibraryGetModule(void **module, void *library) {
  REAL("cuLibraryGetModule", (void **, void *))
  Error error = real(module, library);
  if (!error) note_kernel(*module, library, NULL, 0);
  return error;
}

Error cuKernelGetFunction(void **function, void *kernel) {
  REAL("cuKernelGetFunction", (void **, void *))
  Error error = real(function, kernel);
  Handle known = find_handle(kernel);
  if (!error) note_handle(*function, known.image, known.name, 0);
  return error;
}

typedef Error (*NameFinder)(const char **, void *);
typedef Error (*Counter)(unsigned *, void *);
/* `count` is how many the caller has room for; there may be fewer. */
#define ENUMERATE(api, find_count, find_name, of_library)                                                     \
  Error api(void **kernels, unsigned count, void *owner) {                                        \
    REAL(#api, (void **, unsigned, void *))                                                       \
    NameFinder get_name = (NameFinder)find_real(find_name);                                       \
    Counter get_count = (Counter)find_real(find_count);                                           \
    unsigned existing = 0;                                                                        \
    if (!get_name || !get_count) return NOT_SUPPORTED;                                            \
    Error error = get_count(&existing, owner);                                                    \
    if (!error) error = real(kernels, count, owner);                                              \
    for (unsigned i = 0; !error && i < count && i < existing; ++i) {                                              \
      const char *kernel_name = NULL;                                                             \
      if (!get_name(&kernel_name, kernels[i]))                                        \
        note_kernel(kernels[i], owner, kernel_name, of_library);                                  \
    }                                                                                             \
    return error;                                                                                 \
  }
ENUMERATE(cuLibraryEnumerateKernels, "cuLibraryGetKernelCount", "cuKernelGetName", 1)
ENUMERATE(cuModuleEnumerateFunctions, "cuModuleGetFunctionCount", "cuFuncGetName", 0)

/* Launches */

/* Returns where each parameter lies in a buffer that holds all of them. */
static void **split_buffer(Handle kernel, void **extra, void **places) {
  enum { END = 0, POINTER = 1, MAX_OPTIONS = 8 };
  char *buffer = NULL;
  for (int i = 0; i < MAX_OPTIONS && extra[i] != (void *)END; i += 2)
    if (extra[i] == (void *)POINTER) buffer = extra[i + 1];
  typedef Error (*Finder)(const void *, size_t, size_t *, size_t *);
  Finder find_parameter =
      (Finder)find_real(kernel.is_library_kernel ? "cuKernelGetParamInfo" : "cuFuncGetParamInfo");
  if (!buffer || !find_parameter) {
    fprintf(stderr, "unfix: %s has checks and is not launched: its parameters are in a buffer, and "
            "this driver does not say where (it needs CUDA 12.4)\n", kernel.name);
    return NULL;
  }
  size_t offset, size;
  for (size_t i = 0; i < MAX_PARAMETERS && !find_parameter(kernel.key, i, &offset, &size); ++i)
    places[i] = buffer + offset;
  return places;
}

/* Replaces the parameters by those with checks; returns whether the launch can be. */
static int add_checks(Handle kernel, Dim3 grid, Dim3 block, Stream stream, void ***parameters,
                      void ***extra, Checked *room) {
  void *places[MAX_PARAMETERS] = {0};
  void **own = *parameters;
  if (!own && *extra && !(own = split_buffer(kernel, *extra, places))) return 0;
  void **given = unfix_add_checks(kernel.name, kernel.image, own ? own : places, grid, block,
                                  stream, room);
  if (!given) return 0;
  if (given == room->arguments) {
    *parameters = given;
    *extra = NULL;
  }
  return 1;
}

static Handle find_checked(const void *function) {
  Handle none = {0};
  return unfix_is_handled() ? none : find_handle(function);
}

#define LAUNCH(api)                                                                               \
  Error api(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,      \
             unsigned bz, unsigned shared, Stream stream, void **parameters, void **extra) {      \
    REAL(#api, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
                 Stream, void **, void **))                                                       \
    Checked room;                                                                                 \
    Handle kernel = find_checked(function);                                                       \
    if (kernel.name && !add_checks(kernel, (Dim3){gx, gy, gz}, (Dim3){bx, by, bz}, stream,        \
                                   &parameters, &extra, &room))                                   \
      return NOT_SUPPORTED;                                                                       \
    return real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);             \
  }
LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)

#define LAUNCH_COOPERATIVE(api)                                                                   \
  Error api(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,      \
             unsigned bz, unsigned shared, Stream stream, void **parameters) {                    \
    REAL(#api, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
                 Stream, void **))                                                                \
    Checked room;                                                                                 \
    void **extra = NULL;                                                                          \
    Handle kernel = find_checked(function);                                                       \
    if (kernel.name && !add_checks(kernel, (Dim3){gx, gy, gz}, (Dim3){bx, by, bz}, stream,        \
                                   &parameters, &extra, &room))                                   \
      return NOT_SUPPORTED;                                                                       \
    return real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters);                    \
  }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz)

typedef struct {
  Dim3 grid, block;
  unsigned shared;
  Stream stream;
  Attribute *attributes;
  unsigned attribute_count;
} Configuration;

#define LAUNCH_EX(api)                                                                            \
  Error api(const Configuration *given, void *function, void **parameters, void **extra) {        \
    REAL(#api, (const Configuration *, void *, void **, void **))                                 \
    Checked room;                                                                                 \
    Attribute attributes[MAX_ATTRIBUTES];                                                         \
    Handle kernel = find_checked(function);                                                       \
    if (!kernel.name) return real(given, function, parameters, extra);                            \
    if (!add_checks(kernel, given->grid, given->block, given->stream, &parameters, &extra, &room))\
      return NOT_SUPPORTED;                                                                       \
    if (parameters != room.arguments) return real(given, function, parameters, extra);            \
    Configuration changed = *given;                                                               \
    int left = unfix_keep_attributes(kernel.name, given->attributes, given->attribute_count,      \
                                     attributes);                                                 \
    if (left < 0) return NOT_SUPPORTED;                                                           \
    changed.attributes = attributes;                                                              \
    changed.attribute_count = (unsigned)left;                                                     \
    return real(&changed, function, parameters, extra);                                           \
  }
LAUNCH_EX(cuLaunchKernelEx)
LAUNCH_EX(cuLaunchKernelEx_ptsz)

/* A node that is added to a graph by hand has no checks, and would lack a parameter. */
static int is_refused(const void *function) {
  Handle kernel = find_handle(function);
  if (kernel.name)
    fprintf(stderr, "unfix: %s has checks and cannot be added to a graph by hand: capture its "
            "launch, or leave `cuda` out of --check\n", kernel.name);
  return kernel.name != NULL;
}

#define REFUSE(api, parameters, arguments, kernel)                                                \
  Error api parameters {                                                                          \
    REAL(#api, parameters)                                                                        \
    return is_refused(kernel) ? NOT_SUPPORTED : real arguments;                                   \
  }
typedef void *const *Words; /* the parameters of a node, as 8 bytes each */
enum { LIBRARY_KERNEL = 7 }; /* the word that has it, if the first has no function */
static const void *get_function(Words node) { return node ? node[0] : NULL; }
static const void *get_kernel(Words node) {
  return !node || node[0] ? get_function(node) : node[LIBRARY_KERNEL];
}
/* The same of parameters that begin with what a node is: of a kernel, they are those from the third
   word on. */
static const void *get_kernel_of_any(Words node) {
  return node && !*(const int *)node ? get_kernel(node + 2) : NULL;
}

#define ADD_NODE(api, find)                                                                       \
  REFUSE(api, (void **node, void *graph, Words others, size_t count, Words given),                \
         (node, graph, others, count, given), find(given))
#define SET_NODE(api, find) REFUSE(api, (void *node, Words given), (node, given), find(given))
#define SET_LAUNCHED_NODE(api, find)                                                              \
  REFUSE(api, (void *graph, void *node, Words given), (graph, node, given), find(given))
ADD_NODE(cuGraphAddKernelNode, get_function)
ADD_NODE(cuGraphAddKernelNode_v2, get_kernel)
ADD_NODE(cuGraphAddNode, get_kernel_of_any)
REFUSE(cuGraphAddNode_v2,
       (void **node, void *graph, Words others, const void *edges, size_t count, Words given),
       (node, graph, others, edges, count, given), get_kernel_of_any(given))
SET_NODE(cuGraphKernelNodeSetParams, get_function)
SET_NODE(cuGraphKernelNodeSetParams_v2, get_kernel)
SET_NODE(cuGraphNodeSetParams, get_kernel_of_any)
SET_LAUNCHED_NODE(cuGraphExecKernelNodeSetParams, get_function)
SET_LAUNCHED_NODE(cuGraphExecKernelNodeSetParams_v2, get_kernel)
SET_LAUNCHED_NODE(cuGraphExecNodeSetParams, get_kernel_of_any)

/* Programs that ask the driver for its functions, as the CUDA runtime does */

typedef struct { const char *name; void *own, *own_per_thread; } Replaced;
#define SAME(name) {#name, name, name}
static void *replace(const char *name, uint64_t flags, int version);

Error cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  REAL("cuGetProcAddress", (const char *, void **, int, uint64_t))
  Error error = real(name, function, version, flags);
  void *own = error || !*function ? NULL : replace(name, flags, version);
  if (own) *function = own;
  return error;
}

Error cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                          int *status) {
  REAL("cuGetProcAddress_v2", (const char *, void **, int, uint64_t, int *))
  Error error = real(name, function, version, flags, status);
  void *own = error || !function || !*function ? NULL : replace(name, flags, version);
  if (own) *function = own;
  return error;
}

static const Replaced replaced[] = {
    SAME(cuModuleLoad), SAME(cuModuleLoadData), SAME(cuModuleLoadDataEx),
    SAME(cuModuleLoadFatBinary), SAME(cuModuleUnload), SAME(cuModuleGetFunction),
    SAME(cuModuleEnumerateFunctions), SAME(cuLibraryLoadData), SAME(cuLibraryLoadFromFile),
    SAME(cuLibraryUnload), SAME(cuLibraryGetModule), SAME(cuLibraryGetKernel),
    SAME(cuLibraryEnumerateKernels), SAME(cuKernelGetFunction), SAME(cuGraphAddKernelNode),
    SAME(cuGraphAddNode), SAME(cuGraphKernelNodeSetParams), SAME(cuGraphNodeSetParams),
    SAME(cuGraphExecKernelNodeSetParams), SAME(cuGraphExecNodeSetParams),
    {"cuLaunchKernel", cuLaunchKernel, cuLaunchKernel_ptsz},
    {"cuLaunchCooperativeKernel", cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz},
    {"cuLaunchKernelEx", cuLaunchKernelEx, cuLaunchKernelEx_ptsz},
};

/* Names that mean their second form from a version on. */
typedef struct { const char *name; int from; void *own; } Second;
#define SECOND(name, from) {#name, from, name##_v2}
static const Second seconds[] = {
    SECOND(cuGetProcAddress, 12000), SECOND(cuGraphAddKernelNode, 12000),
    SECOND(cuGraphKernelNodeSetParams, 12000), SECOND(cuGraphExecKernelNodeSetParams, 12000),
    SECOND(cuGraphAddNode, 12030),
};

static void *replace(const char *name, uint64_t flags, int version) {
  for (size_t i = 0; i < sizeof seconds / sizeof *seconds; ++i)
    if (!strcmp(name, seconds[i].name) && version >= seconds[i].from) return seconds[i].own;
  if (!strcmp(name, "cuGetProcAddress")) return (void *)cuGetProcAddress;
  for (size_t i = 0; i < sizeof replaced / sizeof *replaced; ++i)
    if (!strcmp(name, replaced[i].name))
      return flags & PER_THREAD_STREAM ? replaced[i].own_per_thread : replaced[i].own;
  return NULL;
}
