/* Many threads, each with its own stream, pinned buffers and calls: all clean, all right, and
 * nothing left over. Made for ThreadSanitizer. */
#include "check.h"

#include <pthread.h>

enum { THREADS = 8, ROUNDS = 12 };

struct worker {
    struct rotary r;
    float *staging; /* pinned: the six inputs, then the four outputs */
    aclrtEvent from, to;
};

static void set_up(struct worker *w)
{
    make(&w->r);
    ok(aclrtMallocHost((void **)&w->staging, TENSORS * 128));
    ok(aclrtCreateEventExWithFlag(&w->from, ACL_EVENT_TIME_LINE));
    ok(aclrtCreateEventExWithFlag(&w->to, ACL_EVENT_TIME_LINE));
}

static float *slot(const struct worker *w, int tensor)
{
    return w->staging + (ptrdiff_t)tensor * 32;
}

static void call_once(struct worker *w, float value)
{
    struct rotary *r = &w->r;
    float ms;
    for (int i = 0; i < GRAD_QUERY; i++) {
        for (int k = 0; k < 32; k++)
            slot(w, i)[k] = value;
        ok(aclrtMemcpyAsync(r->memory[i], r->bytes[i], slot(w, i), r->bytes[i],
                            ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
    }
    ok(stage_one(r));
    if (r->workspace == NULL)
        make_workspace(r);
    ok(aclrtRecordEvent(w->from, r->stream));
    ok(stage_two(r));
    ok(aclrtRecordEvent(w->to, r->stream));
    for (int i = GRAD_QUERY; i < TENSORS; i++)
        ok(aclrtMemcpyAsync(slot(w, i), r->bytes[i], r->memory[i], r->bytes[i],
                            ACL_MEMCPY_DEVICE_TO_HOST, r->stream));
    ok(aclrtSynchronizeStreamWithTimeout(r->stream, 30000));
    ok(aclrtEventElapsedTime(&ms, w->from, w->to));
    require(slot(w, GRAD_QUERY)[0] == 2 * value * value && slot(w, GRAD_QUERY)[4] == 0);
    require(slot(w, GRAD_COS)[0] == 3 * value * value);
}

static void *work(void *number)
{
    struct worker w = {0};
    ok(aclrtSetDevice(0));
    set_up(&w);
    for (int round = 0; round < ROUNDS; round++)
        call_once(&w, (float)(round + 1 + *(int *)number));
    release(&w.r);
    ok(aclrtFreeHost(w.staging));
    ok(aclrtDestroyEvent(w.from));
    ok(aclrtDestroyEvent(w.to));
    ok(aclrtResetDevice(0));
    return NULL;
}

static void many_streams_at_once(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    struct rotary first;
    start();
    launch(&first); /* an operator's first call is made alone */
    ok(aclrtSynchronizeStream(first.stream));
    release(&first);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        require(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    require(counter("kernels") == THREADS * ROUNDS + 1);
    require(counter("live.executors") == 0 && counter("live.tensors") == 0);
    require(counter("live.device_bytes") == 0 && counter("live.pinned_bytes") == 0);
    require(counter("live.events") == 0 && counter("live.streams") == 1);
    end(0);
}

static const struct check_case cases[] = {CASE(many_streams_at_once)};

CHECK_MAIN(cases)
