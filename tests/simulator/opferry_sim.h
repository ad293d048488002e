/* The simulator's own calls, exported by its libascendcl.so. They work at any time, in any thread,
 * before aclInit and after aclFinalize. */
#ifndef OPFERRY_SIM_H
#define OPFERRY_SIM_H

#include <stdint.h>

#define OPFERRY_SIM_VISIBLE __attribute__((visibility("default")))

/* Adds fault rules (the grammar is in README.md); null or "" removes all that were added so.
 * Returns 0, or -1 and prints what it does not understand. */
OPFERRY_SIM_VISIBLE int opferrySimInject(const char *spec);

/* Returns a counter, for example "live.tensors" or "calls.aclrtMalloc"; -1 if there is none. */
OPFERRY_SIM_VISIBLE int64_t opferrySimCounter(const char *name);

/* Returns the text of the violation with that index, from 0, or null. */
OPFERRY_SIM_VISIBLE const char *opferrySimViolation(int64_t index);

/* Writes counters and violations to a file, as JSON. Returns 0, or -1 if it cannot. */
OPFERRY_SIM_VISIBLE int opferrySimReport(const char *path);

#endif
