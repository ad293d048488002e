/* What the handles stand for, and the memory behind the pointers. All under the one lock. */
#ifndef OPFERRY_SIM_OBJECTS_H
#define OPFERRY_SIM_OBJECTS_H

#include "base.h"
#include "operator.h"

#define SIM_MAX_USES 12
#define SIM_PARAM_COUNT 3

/* ---- memory ---- */

struct sim_allocation {
    uintptr_t start;           /* the device pointer; inaccessible */
    size_t bytes;
    int device;
    int busy;                  /* synchronous copies under way */
    unsigned char *alias;      /* the same memory, accessible */
    unsigned char *map;
    size_t map_bytes;
    uintptr_t first_page;
};

struct sim_pinned {
    struct sim_pinned *next;
    uintptr_t start;
    size_t bytes;
    size_t map_bytes;
    int busy;
    bool freed;
};

/* Where a pointer of a copy leads. */
struct sim_place {
    unsigned char *bytes; /* accessible */
    struct sim_allocation *allocation;
    struct sim_pinned *pinned; /* neither: pageable host memory */
};

bool sim_memory_open(struct sim_call *call, int device);
void sim_memory_close(int device);
bool sim_is_device_pointer(const void *pointer);
aclError sim_place_device(struct sim_call *call, const void *pointer, size_t bytes,
                          const char *what, struct sim_place *place);
aclError sim_place_host(struct sim_call *call, const void *pointer, size_t bytes, const char *what,
                        struct sim_place *place);
aclError sim_memory_allocate(struct sim_call *call, size_t size, void **pointer);
void sim_memory_release(struct sim_allocation *allocation);
size_t sim_memory_used(int device);
void sim_make_dirty(unsigned char *bytes, size_t count);

/* ---- devices and contexts ---- */

struct sim_device {
    int set_count;             /* aclrtSetDevice less aclrtResetDevice, of the process */
    int stream_count;
    struct sim_context *default_context;
};

struct sim_context {
    struct sim_object object;
    struct sim_context *next;
    int device;
    bool is_default;
    struct sim_stream *default_stream;
    int64_t parameters[SIM_PARAM_COUNT];
    bool parameter_set[SIM_PARAM_COUNT];
};

extern struct sim_device sim_devices[SIM_MAX_DEVICES];
extern struct sim_context *sim_contexts;
struct sim_context *sim_current_context(void);
void sim_make_current(struct sim_context *context);
struct sim_context *sim_context_new(int device, bool is_default);
void sim_context_free(struct sim_context *context);

/* ---- streams, tasks, events ---- */

/* How far each stream is known to have come: what orders tasks of different streams. */
struct sim_clock {
    struct sim_clock_entry {
        uint64_t stream;
        uint64_t sequence;
    } *entries;
    size_t count;
    size_t capacity;
};

void sim_clock_raise(struct sim_clock *clock, uint64_t stream, uint64_t sequence);
void sim_clock_merge(struct sim_clock *clock, const struct sim_clock *other);
void sim_clock_clear(struct sim_clock *clock);

struct sim_event {
    struct sim_object object;
    int device;
    uint32_t flags;
    uint64_t recorded;  /* how many times aclrtRecordEvent was called */
    uint64_t completed; /* the last of these that the stream has reached */
    uint64_t aborted;   /* the last of these that an abort has swept away */
    uint64_t stream;    /* serial number of the stream of the last record */
    int64_t time_ns;
    struct sim_clock clock; /* what has happened once it is reached, the stream itself included */
};

enum sim_task_kind {
    SIM_TASK_COPY,
    SIM_TASK_MEMSET,
    SIM_TASK_RECORD,
    SIM_TASK_WAIT,
    SIM_TASK_KERNEL,
};

struct sim_use {
    uintptr_t start;
    size_t bytes;
    bool writes;
};

struct sim_task {
    struct sim_task *previous, *next; /* of the tasks that the host has not synchronised yet */
    struct sim_stream *stream;
    enum sim_task_kind kind;
    uint64_t sequence;
    bool done;
    aclError status;
    struct sim_effects effects;
    struct sim_use uses[SIM_MAX_USES];
    int use_count;
    uint64_t tensors[SIM_MAX_TENSORS];
    int tensor_count;
    struct sim_event *event;
    uint64_t event_record;
    struct sim_clock clock; /* of the event that is waited for */
    struct {
        enum sim_copy_kind kind;
        unsigned char *target;
        const unsigned char *source;
        size_t bytes;
        int value;
        bool has_digest;
        uint64_t digest;
    } copy;
    struct sim_kernel_call kernel;
};

struct sim_stream {
    struct sim_object object;
    struct sim_stream *next;
    struct sim_context *context;
    int device;
    bool is_default;
    uint64_t owner_thread; /* of a default stream: the one thread that uses it */
    bool has_thread, stop, aborting;
    pthread_t thread;
    int waiters;
    uint64_t submitted, completed, aborts;
    aclError abort_status;
    struct sim_task *first, *last; /* not yet synchronised; the done ones come first */
    struct sim_task *upcoming, *running;
    struct sim_clock clock;
    aclError error;
    char error_text[256];
};

extern struct sim_stream *sim_streams;
struct sim_stream *sim_stream_new(struct sim_call *call, struct sim_context *context,
                                  bool is_default);
void sim_stream_delete(struct sim_stream *stream);
aclError sim_stream_find(struct sim_call *call, aclrtStream handle, struct sim_stream **stream);
struct sim_task *sim_task_new(enum sim_task_kind kind, const struct sim_call *call);
void sim_task_use(struct sim_task *task, const void *start, size_t bytes, bool writes);
aclError sim_submit(struct sim_call *call, struct sim_stream *stream, struct sim_task *task);
void sim_abort_stream(struct sim_stream *stream, aclError status);
/* Answers with a stream's own error, once; 0 if it has none. */
aclError sim_report_error(struct sim_call *call, struct sim_stream *stream);
/* Waits until a stream has come to a task, or to its last; the host has then synchronised. */
aclError sim_synchronise(struct sim_call *call, struct sim_stream *stream, uint64_t sequence,
                         int64_t timeout_ms);
/* The same for all streams of the calling thread's device. */
aclError sim_synchronise_device(struct sim_call *call, int64_t timeout_ms);
void *sim_stream_thread(void *stream);
aclError sim_run_task(struct sim_task *task, char *text, size_t size);

/* ---- hazards: memory and tensors that a stream may still be using ---- */

/* Describes in *text* a task that clashes with a use of the memory; false if there is none.
 * *by* is the stream that the use is on, null for the host. */
bool sim_clash(const struct sim_use *use, const struct sim_stream *by, char *text, size_t size);
/* The same for memory that is to be freed. */
bool sim_in_use(uintptr_t start, size_t bytes, char *text, size_t size);
bool sim_event_in_use(const struct sim_event *event);
/* Forgets the tasks up to a sequence number: the host has synchronised with them. */
void sim_retire(struct sim_stream *stream, uint64_t sequence);
void sim_retire_clock(const struct sim_clock *clock);
void sim_retire_task(struct sim_task *task);

/* ---- state of the device ---- */

/* The status of a device fault: noted when it happens, and reported when a call first shows it. */
extern aclError sim_fault_status;
extern bool sim_lost;
#define DEFAULT_OPERATOR_TIMEOUT_US INT64_C(1091000000)
extern int64_t sim_operator_timeout_us;
void sim_event_log_open(void);
void sim_log_task(const struct sim_task *task, bool begins);
void sim_log_copy(enum sim_copy_kind kind, size_t bytes, bool begins);

#endif
