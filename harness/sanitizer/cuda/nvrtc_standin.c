/* The library `libnvrtc.so.N` of a process under check: NVRTC, with checks in what it compiles.

   It is loaded first, so whoever asks for that name gets it, and depends on the real NVRTC by its
   path: a function that is not here is found there. `checked_nvrtc.py` compiles in the place of
   `nvrtcCompileProgram` and gives what a program's PTX and machine code are; a program for which it
   gives nothing is as NVRTC made it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef void *Program;
enum { INTERNAL_ERROR = 11 };

static void *find_real(const char *name) {
  static void *library;
  if (!library) library = dlopen(REAL_NVRTC, RTLD_LAZY);
  return library ? dlsym(library, name) : NULL;
}
#define REAL(name, parameters)                              \
  static Result(*real) parameters;                          \
  if (!real) real = (Result(*) parameters)find_real(#name); \
  if (!real) return INTERNAL_ERROR;

typedef Result (*CompileHook)(Program, int count, const char *const *options);
typedef void (*CreateHook)(Program, const char *source, const char *name);
static CompileHook compile_hook;
static CreateHook create_hook;

void unfix_set_compiler(CompileHook compile, CreateHook create) {
  compile_hook = compile;
  create_hook = create;
}

/* What programs came to: texts and machine code with checks */

enum { PTX, CUBIN, FORMS };
typedef struct Output {
  struct Output *next;
  Program program;
  char *data[FORMS];
  size_t size[FORMS];
} Output;
static Output *outputs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void drop_output(Program program) {
  pthread_mutex_lock(&lock);
  for (Output **place = &outputs; *place; place = &(*place)->next)
    if ((*place)->program == program) {
      Output *old = *place;
      *place = old->next;
      for (int form = 0; form < FORMS; ++form) free(old->data[form]);
      free(old);
      break;
    }
  pthread_mutex_unlock(&lock);
}

/* A size of 0: the program has no such form. PTX has its zero at the end. */
void unfix_set_output(Program program, const void *ptx, size_t ptx_size, const void *cubin,
                      size_t cubin_size) {
  drop_output(program);
  Output *output = calloc(1, sizeof *output);
  output->program = program;
  const void *data[FORMS] = {ptx, cubin};
  size_t sizes[FORMS] = {ptx_size, cubin_size};
  for (int form = 0; form < FORMS; ++form)
    if (sizes[form]) {
      output->data[form] = malloc(sizes[form]);
      memcpy(output->data[form], data[form], sizes[form]);
      output->size[form] = sizes[form];
    }
  pthread_mutex_lock(&lock);
  output->next = outputs;
  outputs = output;
  pthread_mutex_unlock(&lock);
}

/* Copies a form of a program, or only its size; returns whether there is one with checks. */
static int find_output(Program program, int form, char *data, size_t *size) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (Output *one = outputs; one && !found; one = one->next)
    if (one->program == program && one->size[form]) {
      found = 1;
      if (size) *size = one->size[form];
      if (data) memcpy(data, one->data[form], one->size[form]);
    }
  pthread_mutex_unlock(&lock);
  return found;
}

Result nvrtcCreateProgram(Program *program, const char *source, const char *name, int count,
                          const char *const *headers, const char *const *header_names) {
  REAL(nvrtcCreateProgram,
       (Program *, const char *, const char *, int, const char *const *, const char *const *))
  Result result = real(program, source, name, count, headers, header_names);
  if (!result && create_hook) create_hook(*program, source, name ? name : "default_program");
  return result;
}

Result nvrtcCompileProgram(Program program, int count, const char *const *options) {
  REAL(nvrtcCompileProgram, (Program, int, const char *const *))
  drop_output(program);
  return compile_hook ? compile_hook(program, count, options) : real(program, count, options);
}

Result nvrtcDestroyProgram(Program *program) {
  REAL(nvrtcDestroyProgram, (Program *))
  if (program) drop_output(*program);
  return real(program);
}

#define GET(form)                                                          \
  Result nvrtcGet##form##Size(Program program, size_t *size) {             \
    REAL(nvrtcGet##form##Size, (Program, size_t *))                        \
    return find_output(program, form, NULL, size) ? 0 : real(program, size); \
  }                                                                        \
  Result nvrtcGet##form(Program program, char *data) {                     \
    REAL(nvrtcGet##form, (Program, char *))                                \
    return find_output(program, form, data, NULL) ? 0 : real(program, data); \
  }
GET(PTX)
GET(CUBIN)
