/* Streams and events: order, time, limits, aborting. */
#include "check.h"

#include <pthread.h>
#include <unistd.h>

static void *memory;
static aclrtStream one, two;

static void begin(void)
{
    start();
    ok(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    ok(aclrtCreateStream(&one));
    ok(aclrtCreateStreamWithConfig(&two, 0, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC));
}

static void finish(int violations)
{
    ok(aclrtFree(memory));
    ok(aclrtDestroyStream(one));
    ok(aclrtDestroyStream(two));
    end(violations);
}

static void work_is_asynchronous(void)
{
    aclrtStreamStatus status;
    begin();
    hold("aclrtMemsetAsync:1");
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    ok(aclrtStreamQuery(one, &status));
    require(status == ACL_STREAM_STATUS_NOT_READY);
    require_status(107020, aclrtSynchronizeStreamWithTimeout(one, 0));
    require_status(107020, aclrtSynchronizeStreamWithTimeout(one, 10));
    let_go();
    ok(aclrtSynchronizeStreamWithTimeout(one, -1));
    ok(aclrtStreamQuery(one, &status));
    require(status == ACL_STREAM_STATUS_COMPLETE);
    finish(0);
}

static void a_timeout_synchronises_nothing(void)
{
    begin();
    hold("aclrtMemsetAsync:1");
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    require_status(107020, aclrtSynchronizeStreamWithTimeout(one, 1));
    let_go();
    breaks(207002, "before the stream was synchronised", aclrtFree(memory));
    breaks(107000, "before it was synchronised", aclrtDestroyStream(one));
    breaks(107000, "a timeout of -2", aclrtSynchronizeStreamWithTimeout(one, -2));
    ok(aclrtSynchronizeStream(one));
    finish(3);
}

static void *abort_stream_one(void *unused)
{
    (void)unused;
    ok(aclrtSetDevice(0));
    usleep(50000);
    ok(aclrtStreamAbort(one));
    ok(aclrtResetDevice(0));
    return NULL;
}

static void abort_wakes_the_waiter(void)
{
    pthread_t thread;
    begin();
    opferrySimInject("aclrtMemsetAsync:1:hang");
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    ok(aclrtMemsetAsync(memory, 64, 2, 64, one));
    pthread_create(&thread, NULL, abort_stream_one, NULL);
    require_status(107023, aclrtSynchronizeStream(one));
    pthread_join(thread, NULL);
    /* The stream can be used again, and nothing on it is in use any more. */
    ok(aclrtMemsetAsync(memory, 64, 3, 64, one));
    ok(aclrtSynchronizeStream(one));
    finish(0);
}

static void destroy_by_force(void)
{
    begin();
    opferrySimInject("aclrtMemsetAsync:1:hang");
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    ok(aclrtDestroyStreamForce(one));
    ok(aclrtCreateStream(&one));
    finish(0);
}

static void task_abort_is_reserved(void)
{
    begin();
    require_status(207000, aclrtDeviceTaskAbort(0, 100));
    finish(0);
}

static void task_abort_where_allowed(void)
{
    set("OPFERRY_SIM_TASK_ABORT", "1");
    begin();
    opferrySimInject("aclrtMemsetAsync:1:hang");
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    ok(aclrtDeviceTaskAbort(0, 100));
    ok(aclrtSynchronizeStream(one));
    finish(0);
}

static void streams_run_out(void)
{
    aclrtStream stream;
    set("OPFERRY_SIM_STREAM_LIMIT", "4"); /* one is the default stream */
    begin();
    ok(aclrtCreateStream(&stream));
    aclrtStream fifth;
    require_status(207008, aclrtCreateStream(&fifth));
    ok(aclrtDestroyStream(stream));
    finish(0);
}

static void as_many_streams_as_the_device_has(void)
{
    static aclrtStream streams[1983];
    aclrtStream extra;
    start();
    for (int i = 0; i < 1983; i++)
        ok(aclrtCreateStream(&streams[i]));
    require_status(207008, aclrtCreateStream(&extra));
    for (int i = 0; i < 1983; i++)
        ok(aclrtDestroyStream(streams[i]));
    end(0);
}

static void wrong_handles(void)
{
    aclrtEvent event;
    begin();
    aclrtStream cut = (aclrtStream)(uintptr_t)(uint32_t)(uintptr_t)one;
    ok(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    breaks(107017, "no handle", aclrtSynchronizeStream(cut));
    breaks(107017, "of kind event, not stream", aclrtSynchronizeStream(event));
    breaks(107017, "of kind stream, not event", aclrtDestroyEvent(one));
    breaks(107017, "no handle", aclrtDestroyStream(memory));
    breaks(107017, "is null", aclrtDestroyStream(NULL));
    ok(aclrtDestroyEvent(event));
    breaks(107017, "event was destroyed", aclrtRecordEvent(event, one));
    aclrtStream gone = one;
    ok(aclrtDestroyStream(one));
    breaks(107017, "stream was destroyed", aclrtSynchronizeStream(gone));
    breaks(107017, "stream was destroyed", aclrtDestroyStream(gone));
    ok(aclrtCreateStream(&one));
    finish(8);
}

static void events_order_streams(void)
{
    aclrtEvent event;
    unsigned char byte;
    begin();
    ok(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    opferrySimInject("aclrtMemsetAsync:1:slow:100000");
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    ok(aclrtRecordEvent(event, one));
    ok(aclrtStreamWaitEvent(two, event));
    ok(aclrtMemsetAsync(memory, 64, 2, 64, two));
    /* Who waits for the second stream has waited for the first as well. */
    ok(aclrtSynchronizeStream(two));
    ok(aclrtMemcpy(&byte, 1, memory, 1, ACL_MEMCPY_DEVICE_TO_HOST));
    require(byte == 2);
    ok(aclrtDestroyEvent(event));
    finish(0);
}

static void events_measure_time(void)
{
    aclrtEvent from, to;
    float ms = -1;
    begin();
    ok(aclrtCreateEventExWithFlag(&from, ACL_EVENT_TIME_LINE));
    ok(aclrtCreateEventExWithFlag(&to, ACL_EVENT_TIME_LINE));
    opferrySimInject("aclrtMemsetAsync:1:slow:50000");
    breaks(107006, "never recorded", aclrtEventElapsedTime(&ms, from, to));
    ok(aclrtRecordEvent(from, one));
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    ok(aclrtRecordEvent(to, one));
    breaks(107006, "before the stream", aclrtEventElapsedTime(&ms, from, to));
    breaks(107000, "before the stream", aclrtDestroyEvent(to));
    ok(aclrtSynchronizeEvent(to));
    ok(aclrtEventElapsedTime(&ms, from, to));
    require(ms >= 50.0F);
    breaks(107007, "before the start", aclrtEventElapsedTime(&ms, to, from));
    ok(aclrtDestroyEvent(from));
    ok(aclrtDestroyEvent(to));
    finish(4);
}

static void events_without_a_time_line(void)
{
    aclrtEvent event;
    float ms;
    begin();
    ok(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    breaks(107000, "never recorded", aclrtStreamWaitEvent(one, event));
    breaks(107000, "never recorded", aclrtSynchronizeEvent(event));
    ok(aclrtRecordEvent(event, one));
    ok(aclrtSynchronizeStream(one));
    breaks(107006, "ACL_EVENT_TIME_LINE", aclrtEventElapsedTime(&ms, event, event));
    ok(aclrtDestroyEvent(event));
    finish(3);
}

static void events_are_seen_and_timed_out(void)
{
    aclrtEvent event;
    aclrtEventRecordedStatus status;
    begin();
    ok(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    hold("aclrtMemsetAsync:1");
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    ok(aclrtRecordEvent(event, one));
    ok(aclrtQueryEventStatus(event, &status));
    require(status == ACL_EVENT_RECORDED_STATUS_NOT_READY);
    require_status(107020, aclrtSynchronizeEventWithTimeout(event, 1));
    let_go();
    ok(aclrtSynchronizeEventWithTimeout(event, -1));
    ok(aclrtQueryEventStatus(event, &status));
    require(status == ACL_EVENT_RECORDED_STATUS_COMPLETE);
    ok(aclrtDestroyEvent(event));
    finish(0);
}

static void abort_wakes_who_waits_for_an_event(void)
{
    aclrtEvent event;
    pthread_t thread;
    begin();
    ok(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    opferrySimInject("aclrtMemsetAsync:1:hang");
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    ok(aclrtRecordEvent(event, one));
    pthread_create(&thread, NULL, abort_stream_one, NULL);
    require_status(107023, aclrtSynchronizeEvent(event));
    pthread_join(thread, NULL);
    ok(aclrtDestroyEvent(event));
    finish(0);
}

static void event_and_stream_of_two_devices(void)
{
    aclrtEvent event;
    begin();
    ok(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    ok(aclrtSetDevice(1));
    breaks(107000, "event is of device 0", aclrtRecordEvent(event, NULL));
    ok(aclrtResetDevice(1));
    ok(aclrtSetDevice(0));
    ok(aclrtDestroyEvent(event));
    ok(aclrtResetDevice(0));
    finish(1);
}

static void events_run_out(void)
{
    aclrtEvent first, second;
    set("OPFERRY_SIM_EVENT_LIMIT", "1");
    begin();
    ok(aclrtCreateEventExWithFlag(&first, ACL_EVENT_SYNC));
    require_status(207007, aclrtCreateEventExWithFlag(&second, ACL_EVENT_SYNC));
    ok(aclrtDestroyEvent(first));
    finish(0);
}

static void leaks_of_streams_and_events(void)
{
    aclrtEvent event;
    begin();
    ok(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    ok(aclrtFree(memory));
    int64_t before = counter("violations");
    ok(aclrtResetDevice(0));
    broke(before, "2 streams");
    breaks(0, "1 events", aclFinalize());
}

static const struct check_case cases[] = {
    CASE(work_is_asynchronous),
    CASE(a_timeout_synchronises_nothing),
    CASE(abort_wakes_the_waiter),
    CASE(destroy_by_force),
    CASE(task_abort_is_reserved),
    CASE(task_abort_where_allowed),
    CASE(streams_run_out),
    CASE(as_many_streams_as_the_device_has),
    CASE(wrong_handles),
    CASE(events_order_streams),
    CASE(events_measure_time),
    CASE(events_without_a_time_line),
    CASE(events_are_seen_and_timed_out),
    CASE(abort_wakes_who_waits_for_an_event),
    CASE(event_and_stream_of_two_devices),
    CASE(events_run_out),
    CASE(leaks_of_streams_and_events),
};

CHECK_MAIN(cases)
