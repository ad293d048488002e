/* What every function of the simulator begins and ends with: the lock, the settings, the counters,
 * violations, and the message that belongs to a status. */
#ifndef OPFERRY_SIM_BASE_H
#define OPFERRY_SIM_BASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../acl_sim.h"
#include "../opferry_sim.h"
#include "functions.h"

/* Used by libnnopbase and the operator libraries too, for all state lives in libascendcl. */
#define SIM_SHARED __attribute__((visibility("default")))
#define SIM_PRINTF(text, first) __attribute__((format(printf, text, first)))

#define SIM_MAX_DEVICES 16

/* ---- settings, read from the environment at the first call ---- */

struct sim_settings {
    int device_count;
    int visible_count;                  /* after ASCEND_RT_VISIBLE_DEVICES */
    int visible[SIM_MAX_DEVICES];       /* logical to physical number */
    size_t device_memory_bytes;
    int64_t kernel_us;                  /* the least that a kernel takes */
    int64_t copy_us;                    /* the least that a copy on a stream takes */
    int64_t timeout_tick_us;
    int64_t stream_limit;
    int64_t event_limit;
    int64_t dirty_byte;
    size_t dirty_bytes;                 /* at most so many of an allocation are made dirty */
    aclError shape_status;              /* 161002 or 561002 */
    aclError reuse_status;              /* of an executor's second use; 0 means a crash */
    bool workspace_fixed;    /* else added to the formula */
    uint64_t workspace_bytes;
    bool abort_on_violation;
    bool sticky;
    bool sticky_blocks;
    bool host_digest;
    bool task_abort;
    char soc[96];
    const char *report;
    const char *log;
    const char *counters;
    const char *faults;
    const char *faults_file;
};

extern struct sim_settings sim_settings;
SIM_SHARED void sim_prepare(void);
SIM_SHARED const char *sim_settings_soc(void);
SIM_SHARED aclError sim_settings_shape_status(void);
/* What stage one asks for where the documented formula gives that many bytes. */
SIM_SHARED uint64_t sim_workspace_asked(uint64_t formula_bytes);
void sim_read_settings(void);
/* Writes a path to *text*, each %d replaced by the process's number. */
void sim_expand_path(const char *path, char *text, size_t size);

/* ---- one lock, one condition: few threads, and rules that span all objects ---- */

extern pthread_mutex_t sim_mutex;
extern pthread_cond_t sim_changed;
void sim_lock(void);
void sim_unlock(void);
/* Waits for a change with the lock held; false once the time has come. INT64_MAX: no end. */
bool sim_wait(int64_t deadline_ns);
int64_t sim_now_ns(void);
#define SIM_HOLD_POLL_US 2000
void sim_sleep_us(int64_t microseconds);
_Noreturn void sim_block_for_ever(void);
/* Dies as by that signal, whatever the program or a sanitizer does about it. */
void sim_crash(int signal_number);
bool sim_file_exists(const char *path);

/* ---- counters ---- */

enum sim_gauge {
    SIM_GAUGE_DEVICE_ALLOCATIONS,
    SIM_GAUGE_DEVICE_BYTES,
    SIM_GAUGE_PINNED_ALLOCATIONS,
    SIM_GAUGE_PINNED_BYTES,
    SIM_GAUGE_STREAMS,
    SIM_GAUGE_EVENTS,
    SIM_GAUGE_CONTEXTS,
    SIM_GAUGE_TENSORS,
    SIM_GAUGE_EXECUTORS,
    SIM_GAUGE_COUNT,
};

enum sim_tally {
    SIM_TALLY_VIOLATIONS,
    SIM_TALLY_FAULTS,
    SIM_TALLY_KERNELS,
    SIM_TALLY_H2D_BYTES,
    SIM_TALLY_D2H_BYTES,
    SIM_TALLY_D2D_BYTES,
    SIM_TALLY_LOST,
    SIM_TALLY_COUNT,
};

void sim_counters_open(void);
SIM_SHARED void sim_gauge(enum sim_gauge gauge, int64_t change);
int64_t sim_gauge_live(enum sim_gauge gauge);
void sim_tally(enum sim_tally tally, int64_t change);
int64_t sim_tally_value(enum sim_tally tally);
void sim_count_call(enum sim_function function);
void sim_write_report(void);

/* ---- calls ---- */

struct sim_context;

/* What a fault rule does to one call, or to the task that the call puts on a stream. */
struct sim_effects {
    aclError status;
    bool immediate;
    bool null_answer;
    bool hang;
    bool hang_for_ever;
    int64_t slow_us;
    char hold[256]; /* a file: goes on once it is gone; empty: none */
    int crash_signal;
    int corrupt; /* an output's number plus one, as in the next three; 0: none */
    int unwritten;
    int partial;
    int overrun;
    char soc[64];
};

enum sim_needs {
    SIM_ANY_TIME = 0,
    SIM_NEEDS_INIT = 1,
    SIM_NEEDS_CONTEXT = 2 | SIM_NEEDS_INIT,
    SIM_RELEASES = 4,      /* may block for ever once the device is lost */
    SIM_WHEN_LOST = 8,     /* still answers once the device is lost */
    SIM_DEVICE_SIDE = 16,  /* a device fault comes out at the synchronisation */
    SIM_ACLNN = 32,        /* misuse of the runtime shows as 361001 */
    SIM_FIRST_ALONE = 64,  /* the first call of the process must be alone in the function */
};

enum sim_copy_kind { SIM_ANY_COPY, SIM_H2D, SIM_D2H, SIM_D2D, SIM_H2H };

struct sim_call {
    enum sim_function function;
    unsigned needs;
    bool locked;
    struct sim_context *context;
    int device; /* logical, of the current context; -1 without one */
    struct sim_effects effects;
};

/* Takes the lock, counts, applies faults, checks what the call needs. Whatever it returns,
 * sim_leave must follow: it lets go of the lock and notes the status. */
SIM_SHARED aclError sim_enter(struct sim_call *call, enum sim_function function, unsigned needs);
aclError sim_enter_copy(struct sim_call *call, enum sim_function function, unsigned needs,
                        enum sim_copy_kind kind);
aclError sim_enter_device(struct sim_call *call, enum sim_function function, unsigned needs,
                          int32_t device);
SIM_SHARED aclError sim_leave(struct sim_call *call, aclError status);
SIM_SHARED const char *sim_function_name(enum sim_function function);

/* A broken rule: recorded, printed, the thread's message; returns the status. */
SIM_SHARED aclError sim_violate(struct sim_call *call, aclError status, const char *format, ...)
    SIM_PRINTF(3, 4);
/* A refusal that breaks no rule: the thread's message only. */
SIM_SHARED aclError sim_refuse(struct sim_call *call, aclError status, const char *format, ...)
    SIM_PRINTF(3, 4);
/* A broken rule that shows outside any call: on a stream, at exit. */
void sim_record_violation(const char *text, bool may_abort);
const char *sim_status_name(aclError status);

static inline bool sim_is_device_fault(aclError status)
{
    return status / 1000 == 507;
}

#endif
