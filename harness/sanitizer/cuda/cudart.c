/* The stand-in for libcudart.so.13: the functions that host code of CUDA kernels calls.

   A library of this name that is loaded first gets all calls of the modules that are loaded later.
   A launch goes to `launch_hook`; memory is this machine's, so copies are copies of the host, and
   whatever is asynchronous on a GPU has happened when the call returns. Every function of libcudart
   that is not written here is in the generated list unanswered.inc: it names itself to
   `unanswered_hook` and returns cudaErrorNotSupported. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Error;
typedef struct { unsigned x, y, z; } Dim3;
typedef void *Stream;

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_FUNCTION = 98, NOT_SUPPORTED = 801 };

/* What crosses to Python; harness/sanitizer/cuda/cudart.py has the same fields. */
typedef struct {
  const char *entry;   /* mangled */
  const void *fatbin;
  void **arguments;    /* one pointer for each parameter */
  uint64_t shared_bytes, max_shared_bytes;
  Dim3 grid, block, cluster;
  int32_t is_cooperative;
} Launch;

static Error (*launch_hook)(const Launch *);
static void *(*variable_hook)(const void *fatbin, const char *name);
static int (*static_shared_hook)(const void *fatbin, const char *entry);
static int (*most_threads_hook)(const void *fatbin, const char *entry);   /* 0: it sets no limit */
static void (*unanswered_hook)(const char *name);
static Error (*write_hook)(const void *target, const void *source, uint64_t size);
static int device_attributes[256];   /* by cudaDeviceAttr; -1 where the card has no answer */
static _Thread_local Error last_error;

void unfix_set_hooks(Error (*launch)(const Launch *),
                     void *(*variable)(const void *, const char *),
                     int (*static_shared)(const void *, const char *),
                     int (*most_threads)(const void *, const char *),
                     void (*unanswered)(const char *),
                     Error (*write)(const void *, const void *, uint64_t)) {
  launch_hook = launch, variable_hook = variable;
  static_shared_hook = static_shared, most_threads_hook = most_threads;
  unanswered_hook = unanswered, write_hook = write;
  memset(device_attributes, -1, sizeof device_attributes);
}

void unfix_set_device_attribute(int attribute, int value) { device_attributes[attribute] = value; }

static Error fail(Error error) { return last_error = error; }

static Error refuse(const char *name) {
  if (unanswered_hook) unanswered_hook(name);
  return fail(NOT_SUPPORTED);
}

/* Modules: nvcc's generated code registers each kernel and variable when a module is loaded. */

typedef struct { const void *handle, *fatbin; } Module;
typedef struct {
  const void *key;   /* the host's function or variable */
  Module *module;
  const char *name;
  int max_shared_bytes;   /* of dynamic shared memory; 0: never set */
} Symbol;
typedef struct { Symbol *items; size_t count, capacity; } Symbols;
static Symbols kernels, variables;

static void add_symbol(Symbols *symbols, const void *key, void **module, const char *name) {
  if (symbols->count == symbols->capacity) {
    symbols->capacity = symbols->capacity ? 2 * symbols->capacity : 256;
    symbols->items = realloc(symbols->items, symbols->capacity * sizeof(Symbol));
  }
  symbols->items[symbols->count++] = (Symbol){key, (Module *)module, name, 0};
}

static Symbol *find_symbol(Symbols *symbols, const void *key) {
  for (size_t i = symbols->count; i-- > 0;)
    if (symbols->items[i].key == key) return &symbols->items[i];
  return NULL;
}

static void remove_symbols(Symbols *symbols, const void *module) {
  size_t left = 0;
  for (size_t i = 0; i < symbols->count; i++)
    if (symbols->items[i].module != module) symbols->items[left++] = symbols->items[i];
  symbols->count = left;
}

void **__cudaRegisterFatBinary(void *wrapper) {
  Module *module = calloc(1, sizeof(Module));
  module->fatbin = ((void **)wrapper)[1];   /* behind two 32-bit numbers: magic and version */
  return (void **)module;
}
void __cudaRegisterFatBinaryEnd(void **module) { (void)module; }
void __cudaUnregisterFatBinary(void **module) {
  remove_symbols(&kernels, module), remove_symbols(&variables, module);
  free(module);
}
void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name,
                            int thread_limit, void *tid, void *bid, void *block, void *grid,
                            int *warp_size) {
  (void)device, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
  add_symbol(&kernels, host, module, name);
}
void __cudaRegisterVar(void **module, char *host, char *device, const char *name, int is_external,
                       size_t size, int is_constant, int is_global) {
  (void)device, (void)is_external, (void)size, (void)is_constant, (void)is_global;
  add_symbol(&variables, host, module, name);
}
char __cudaInitModule(void **module) { (void)module; return 1; }
Error __cudaGetKernel(void **kernel, const void *function) {
  *kernel = (void *)function;
  return SUCCESS;
}

/* Launches */

static _Thread_local struct { Dim3 grid, block; size_t shared; Stream stream; } pushed;

unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, Stream stream) {
  pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
  return 0;
}
Error __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, Stream *stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream;
  return SUCCESS;
}

static Error launch(const void *function, Dim3 grid, Dim3 block, Dim3 cluster, void **arguments,
                    size_t shared, int is_cooperative) {
  Symbol *kernel = find_symbol(&kernels, function);
  if (!kernel) return fail(INVALID_FUNCTION);
  Launch values = {kernel->name, kernel->module->fatbin, arguments, shared,
                   kernel->max_shared_bytes, grid, block, cluster, is_cooperative};
  Error error = launch_hook(&values);
  return error ? fail(error) : SUCCESS;
}

static const Dim3 one = {1, 1, 1};

Error cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                       Stream stream) {
  (void)stream;
  return launch(function, grid, block, one, arguments, shared, 0);
}
Error __cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments,
                         size_t shared, Stream stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
Error cudaLaunchCooperativeKernel(const void *function, Dim3 grid, Dim3 block, void **arguments,
                                  size_t shared, Stream stream) {
  (void)stream;
  return launch(function, grid, block, one, arguments, shared, 1);
}

typedef struct { int id; char padding[4]; char value[64]; } LaunchAttribute;
typedef struct {
  Dim3 grid, block;
  size_t shared;
  Stream stream;
  LaunchAttribute *attributes;
  unsigned attribute_count;
} LaunchConfiguration;
enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4 };

Error cudaLaunchKernelExC(const LaunchConfiguration *configuration, const void *function,
                          void **arguments) {
  Dim3 cluster = one;
  int is_cooperative = 0;
  for (unsigned i = 0; i < configuration->attribute_count; i++) {
    const LaunchAttribute *attribute = &configuration->attributes[i];
    if (attribute->id == CLUSTER_DIMENSION) memcpy(&cluster, attribute->value, sizeof cluster);
    if (attribute->id == COOPERATIVE) memcpy(&is_cooperative, attribute->value, sizeof(int));
  }
  return launch(function, configuration->grid, configuration->block, cluster, arguments,
                configuration->shared, is_cooperative);
}

/* Errors */

const char *cudaGetErrorName(Error error) {
  switch (error) {
    case SUCCESS: return "cudaSuccess";
    case INVALID_VALUE: return "cudaErrorInvalidValue";
    case 9: return "cudaErrorInvalidConfiguration";
    case INVALID_FUNCTION: return "cudaErrorInvalidDeviceFunction";
    case 700: return "cudaErrorIllegalAddress";
    case 701: return "cudaErrorLaunchOutOfResources";
    case 710: return "cudaErrorAssert";
    case NOT_SUPPORTED: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}
const char *cudaGetErrorString(Error error) {
  switch (error) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case 9: return "invalid configuration argument";
    case INVALID_FUNCTION: return "invalid device function";
    case 700: return "an illegal memory access was encountered";
    case 701: return "too many resources requested for launch";
    case 710: return "device-side assert triggered";
    case NOT_SUPPORTED: return "operation not supported";
    default: return "unknown error";
  }
}
Error cudaGetLastError(void) {
  Error error = last_error;
  last_error = SUCCESS;
  return error;
}
Error cudaPeekAtLastError(void) { return last_error; }

/* The device: one for each process, its streams in order */

Error cudaGetDevice(int *device) { *device = 0; return SUCCESS; }
Error cudaSetDevice(int device) { return device ? refuse("cudaSetDevice of another device") : 0; }
Error cudaGetDeviceCount(int *count) { *count = 1; return SUCCESS; }
Error cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  if (attribute < 0 || attribute > 255 || device_attributes[attribute] == -1)
    return refuse("cudaDeviceGetAttribute of an attribute that the card does not state");
  *value = device_attributes[attribute];
  return SUCCESS;
}
Error cudaRuntimeGetVersion(int *version) { *version = 13000; return SUCCESS; }
Error cudaDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
Error cudaDeviceSynchronize(void) { return SUCCESS; }
Error cudaStreamSynchronize(Stream stream) { (void)stream; return SUCCESS; }

/* Functions and their limits */

enum { MAX_DYNAMIC_SHARED = 8, SHARED_CARVEOUT = 9, CLUSTER_SIZE_ALLOWED = 14 };
enum { SHARED_OPTIN = 97, SHARED_OF_PROCESSOR = 81, THREADS_OF_PROCESSOR = 39 };
enum { SHARED_RESERVED = 1024 };   /* of each block, for the system, since compute capability 8.0 */

static int get_static_shared(const Symbol *kernel) {
  return static_shared_hook(kernel->module->fatbin, kernel->name);
}

Error cudaFuncSetAttribute(const void *function, int attribute, int value) {
  Symbol *kernel = find_symbol(&kernels, function);
  if (!kernel) return fail(INVALID_FUNCTION);
  if (attribute == MAX_DYNAMIC_SHARED) {
    if (value < 0 || value > device_attributes[SHARED_OPTIN] - get_static_shared(kernel))
      return fail(INVALID_VALUE);
    kernel->max_shared_bytes = value;
  } else if (attribute != SHARED_CARVEOUT && attribute != CLUSTER_SIZE_ALLOWED) {
    return refuse("cudaFuncSetAttribute of an attribute that is not specified");
  }
  return SUCCESS;
}

/* cudaFuncAttributes. PTX fixes neither the registers of a kernel nor its local memory (0 here):
   each thread has as many registers as the threads of its largest block can have; a kernel that sets
   no limit of threads has the most, and so fewer threads than a block of few registers. */
typedef struct {
  size_t static_shared, constant, local;
  int max_threads, registers, ptx_version, binary_version, caches_all, max_dynamic_shared;
  int further[24];   /* the carveout, clusters, and what is reserved */
} FunctionAttributes;
_Static_assert(sizeof(FunctionAttributes) == 144, "sizeof(cudaFuncAttributes) of CUDA 13");
enum { THREADS_OF_BLOCK = 1, SHARED_OF_BLOCK = 8, MAJOR = 75, MINOR = 76 };
enum { REGISTERS_OF_BLOCK = 12, MOST_REGISTERS = 255, WARP = 32, REGISTER_STEP = 8 };

Error cudaFuncGetAttributes(FunctionAttributes *found, const void *function) {
  Symbol *kernel = find_symbol(&kernels, function);
  if (!kernel) return fail(INVALID_FUNCTION);
  memset(found, 0, sizeof *found);
  found->static_shared = get_static_shared(kernel);
  int all = device_attributes[REGISTERS_OF_BLOCK], most = device_attributes[THREADS_OF_BLOCK];
  int limit = most_threads_hook(kernel->module->fatbin, kernel->name);
  if (!limit) limit = all / MOST_REGISTERS / WARP * WARP;
  found->max_threads = limit < most ? limit : most;
  int warps = (found->max_threads + WARP - 1) / WARP;
  found->registers = all / (warps * WARP) / REGISTER_STEP * REGISTER_STEP;
  if (found->registers > MOST_REGISTERS) found->registers = MOST_REGISTERS;
  found->ptx_version = 10 * device_attributes[MAJOR] + device_attributes[MINOR];
  found->binary_version = found->ptx_version;
  found->max_dynamic_shared = kernel->max_shared_bytes;
  if (!found->max_dynamic_shared)
    found->max_dynamic_shared = device_attributes[SHARED_OF_BLOCK] - (int)found->static_shared;
  return SUCCESS;
}

/* By threads and shared memory alone: PTX does not fix the number of registers. */
Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                    size_t dynamic_shared) {
  Symbol *kernel = find_symbol(&kernels, function);
  if (!kernel) return fail(INVALID_FUNCTION);
  if (threads <= 0) return fail(INVALID_VALUE);
  int64_t shared = (int64_t)dynamic_shared + get_static_shared(kernel) + SHARED_RESERVED;
  int by_threads = device_attributes[THREADS_OF_PROCESSOR] / threads;
  int64_t by_shared = device_attributes[SHARED_OF_PROCESSOR] / shared;
  *blocks = by_threads < by_shared ? by_threads : (int)by_shared;
  if (*blocks > 32) *blocks = 32;
  return SUCCESS;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                             int threads, size_t dynamic_shared,
                                                             unsigned flags) {
  (void)flags;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, dynamic_shared);
}
Error cudaOccupancyAvailableDynamicSMemPerBlock(size_t *size, const void *function, int blocks,
                                                int threads) {
  (void)threads;
  Symbol *kernel = find_symbol(&kernels, function);
  if (!kernel) return fail(INVALID_FUNCTION);
  if (blocks <= 0) return fail(INVALID_VALUE);
  int64_t most = device_attributes[SHARED_OPTIN];
  int64_t shared = device_attributes[SHARED_OF_PROCESSOR] / blocks - SHARED_RESERVED;
  shared = (shared < most ? shared : most) - get_static_shared(kernel);
  *size = shared > 0 ? shared : 0;
  return SUCCESS;
}
Error cudaOccupancyMaxPotentialClusterSize(int *size, const void *function, const void *config) {
  (void)function, (void)config;
  *size = 8;   /* what every kernel can have on compute capability 9.0 */
  return SUCCESS;
}
enum { MULTIPROCESSORS = 16 };
/* As many as fit on all multiprocessors; that a cluster lies in one group of them is not known. */
Error cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                     const LaunchConfiguration *configuration) {
  int64_t size = 1;
  for (unsigned i = 0; i < configuration->attribute_count; i++) {
    Dim3 cluster = one;
    const LaunchAttribute *attribute = &configuration->attributes[i];
    if (attribute->id == CLUSTER_DIMENSION) memcpy(&cluster, attribute->value, sizeof cluster);
    size *= (int64_t)cluster.x * cluster.y * cluster.z;
  }
  if (size <= 0) return fail(INVALID_VALUE);
  Dim3 block = configuration->block;
  int blocks;
  Error error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, function, block.x * block.y * block.z, configuration->shared);
  if (error) return error;
  *clusters = (int)(blocks * (int64_t)device_attributes[MULTIPROCESSORS] / size);
  return SUCCESS;
}

/* Memory: the device's is this machine's. A copy is checked before it is made. */

Error cudaMemcpy(void *target, const void *source, size_t size, int kind) {
  (void)kind;
  Error error = size ? write_hook(target, source, size) : SUCCESS;
  if (error) return fail(error);
  memmove(target, source, size);
  return SUCCESS;
}
Error cudaMemcpyAsync(void *target, const void *source, size_t size, int kind, Stream stream) {
  (void)stream;
  return cudaMemcpy(target, source, size, kind);
}
Error cudaMemset(void *target, int value, size_t size) {
  Error error = size ? write_hook(target, NULL, size) : SUCCESS;
  if (error) return fail(error);
  memset(target, value, size);
  return SUCCESS;
}
Error cudaMemsetAsync(void *target, int value, size_t size, Stream stream) {
  (void)stream;
  return cudaMemset(target, value, size);
}
Error cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
  (void)flags;
  *device = host;
  return SUCCESS;
}
Error cudaGetSymbolAddress(void **address, const void *symbol) {
  Symbol *variable = find_symbol(&variables, symbol);
  if (!variable) return fail(13);   /* cudaErrorInvalidSymbol */
  *address = variable_hook(variable->module->fatbin, variable->name);
  return *address ? SUCCESS : fail(NOT_SUPPORTED);
}
Error cudaMemcpyToSymbol(const void *symbol, const void *source, size_t size, size_t offset,
                         int kind) {
  void *address;
  Error error = cudaGetSymbolAddress(&address, symbol);
  return error ? error : cudaMemcpy((char *)address + offset, source, size, kind);
}
Error cudaMemcpyToSymbolAsync(const void *symbol, const void *source, size_t size, size_t offset,
                              int kind, Stream stream) {
  (void)stream;
  return cudaMemcpyToSymbol(symbol, source, size, offset, kind);
}

/* tvm-ffi asks the table of DLPack for the current stream; a torch without CUDA has none. */
int unfix_current_stream(int device_type, int32_t device, void **stream) {
  (void)device_type, (void)device;
  *stream = NULL;
  return 0;
}

#include "unanswered.inc"
