/* What the libraries that add checks to launches share: the process library (`launch_checks.c`) has
   the hook, and the stand-in for the driver (`driver_standin.c`) calls it, too. */

#ifndef UNFIX_LAUNCH_CHECKS_H
#define UNFIX_LAUNCH_CHECKS_H
#include <stddef.h>
#include <stdint.h>

typedef int Error;
typedef struct { unsigned x, y, z; } Dim3;
typedef void *Stream;
typedef struct { int id; char padding[4]; char value[64]; } Attribute;

enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6, MAX_ATTRIBUTES = 32 };
enum { NOT_SUPPORTED = 801, MAX_PARAMETERS = 512, CHECK_BYTES = 32768 };

/* The arguments of a launch with the checks behind them. */
typedef struct { void *arguments[MAX_PARAMETERS + 1]; char checks[CHECK_BYTES]; } Checked;

/* Returns the arguments to launch with, NULL if the launch must not be. `image` begins like a
   fatbin, and the markers of its modules stand behind its header. */
void **unfix_add_checks(const char *name, const void *image, void **arguments, Dim3 grid, Dim3 block,
                        Stream stream, Checked *room);
/* Removes what lets a launch begin before the one in front of it has ended, if checks for races
   number launches; returns the count that is left, -1 if `kept` has no room. */
int unfix_keep_attributes(const char *name, const Attribute *attributes, unsigned count,
                          Attribute *kept);
/* Whether this thread is in a launch of a checked module's own host code, which has its checks. */
int unfix_is_handled(void);

#endif
