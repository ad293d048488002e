/* For the programs that break rules: each case runs in a process of its own. */
#ifndef OPFERRY_CHECK_H
#define OPFERRY_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl_sim.h"
#include "aclnn_sim.h"
#include "opferry_sim.h"

struct check_case {
    const char *name;
    void (*run)(void);
};

#define CASE(function) {#function, function}

/* Runs all cases, or those named; to be called before anything of the simulator. */
int check_main(int count, char **words, const struct check_case *cases, size_t case_count);
#define CHECK_MAIN(cases) \
    int main(int count, char **words) \
    { \
        return check_main(count, words, cases, sizeof cases / sizeof cases[0]); \
    }

#define require(condition) \
    do { \
        if (!(condition)) \
            check_fail(__FILE__, __LINE__, #condition); \
    } while (0)
#define require_status(expected, call) check_status(__FILE__, __LINE__, #call, (expected), (call))
#define ok(call) require_status(ACL_SUCCESS, call)
/* The call breaks a rule: it answers with that status, and one violation is recorded, whose text
 * holds the words. */
#define breaks(expected, words, call) \
    do { \
        int64_t before = opferrySimCounter("violations"); \
        require_status(expected, call); \
        check_violation(__FILE__, __LINE__, before, (words)); \
    } while (0)
/* The same where the status is of no interest. */
#define broke(before, words) check_violation(__FILE__, __LINE__, (before), (words))

_Noreturn void check_fail(const char *file, int line, const char *what);
void check_status(const char *file, int line, const char *call, int expected, int status);
void check_violation(const char *file, int line, int64_t before, const char *words);
/* Whether reading a byte there is answered with a segmentation fault. */
bool faults_on_access(const volatile void *pointer);

/* A fault rule that holds what matches it, "function:when", until let_go(). */
void hold(const char *what);
void let_go(void);

void start(void);           /* aclInit, device 0 for this thread */
void end(int violations);   /* everything given back, and that many rules broken in all */
int64_t counter(const char *name);
void set(const char *name, const char *value); /* a setting; before start() */
/* Runs a function in another thread and waits for it. */
void in_thread(void (*run)(void *), void *argument);

/* One call of the operator: layout BSND, float32, B = 1, S = 2, Nq = 2, Nk = 1, D = 8. */
enum { GRAD_QUERY_EMBED, GRAD_KEY_EMBED, COS, SIN, QUERY, KEY, GRAD_QUERY, GRAD_KEY, GRAD_COS,
       GRAD_SIN, TENSORS };
struct rotary {
    aclrtStream stream;
    size_t bytes[TENSORS];
    void *memory[TENSORS];
    aclTensor *tensors[TENSORS];
    uint64_t workspace_bytes;
    void *workspace;
    aclOpExecutor *executor;
};
void make(struct rotary *r);       /* stream, memory, tensors; inputs all 1.0 */
int stage_one(struct rotary *r);
void make_workspace(struct rotary *r);
int stage_two(struct rotary *r);
void launch(struct rotary *r);     /* make to stage two */
void release(struct rotary *r);    /* all but the executor; after synchronisation */

#endif
