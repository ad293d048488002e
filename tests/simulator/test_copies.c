/* Copies, memsets and pinned host memory: what must wait for what. */
#include "check.h"

static unsigned char bytes[256];

static void *allocate(size_t size)
{
    void *memory = NULL;
    ok(aclrtMalloc(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST));
    return memory;
}

static void freed_before_a_copy_is_synchronised(void)
{
    aclrtStream stream;
    void *pinned;
    start();
    ok(aclrtCreateStream(&stream));
    ok(aclrtMallocHost(&pinned, 64));
    void *memory = allocate(64);
    memset(pinned, 7, 64);
    ok(aclrtMemcpyAsync(memory, 64, pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    breaks(207002, "before the stream was synchronised", aclrtFree(memory));
    breaks(207002, "before the stream was synchronised", aclrtFreeHost(pinned));
    ok(aclrtSynchronizeStream(stream));
    ok(aclrtFree(memory));
    ok(aclrtFreeHost(pinned));
    ok(aclrtDestroyStream(stream));
    end(2);
}

static void free_with_synchronisation_waits(void)
{
    aclrtStream stream;
    start();
    ok(aclrtCreateStream(&stream));
    void *memory = allocate(64);
    ok(aclrtMemsetAsync(memory, 64, 0, 64, stream));
    ok(aclrtFreeWithDevSync(memory));
    ok(aclrtDestroyStream(stream));
    end(0);
}

static void read_before_synchronisation(void)
{
    aclrtStream stream;
    start();
    ok(aclrtCreateStream(&stream));
    void *memory = allocate(64);
    ok(aclrtMemsetAsync(memory, 64, 9, 64, stream));
    breaks(107000, "reads memory before",
           aclrtMemcpy(bytes, 64, memory, 64, ACL_MEMCPY_DEVICE_TO_HOST));
    ok(aclrtSynchronizeStream(stream));
    ok(aclrtMemcpy(bytes, 64, memory, 64, ACL_MEMCPY_DEVICE_TO_HOST));
    require(bytes[0] == 9);
    ok(aclrtFree(memory));
    ok(aclrtDestroyStream(stream));
    end(1);
}

static void pinned_target_is_read_late(void)
{
    aclrtStream stream;
    unsigned char *pinned;
    start();
    ok(aclrtCreateStream(&stream));
    ok(aclrtMallocHost((void **)&pinned, 64));
    void *memory = allocate(64);
    ok(aclrtMemset(memory, 64, 9, 64));
    memset(pinned, 9, 64); /* what an earlier call has left there must not look like the result */
    hold("aclrtMemcpyAsync:1");
    ok(aclrtMemcpyAsync(pinned, 64, memory, 64, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    require(pinned[0] == 0xA5 && pinned[63] == 0xA5);
    counter("kernels"); /* takes the lock, so that no sanitizer sees a race */
    let_go();
    ok(aclrtSynchronizeStream(stream));
    require(pinned[0] == 9 && pinned[63] == 9);
    ok(aclrtFree(memory));
    ok(aclrtFreeHost(pinned));
    ok(aclrtDestroyStream(stream));
    end(0);
}

/* Holds the stream up, so that the copy from pinned memory certainly comes later. */
static void altered_pinned_memory(void)
{
    aclrtStream stream;
    unsigned char *pinned;
    start();
    ok(aclrtCreateStream(&stream));
    ok(aclrtMallocHost((void **)&pinned, 64));
    void *memory = allocate(64), *other = allocate(64);
    memset(pinned, 7, 64);
    hold("aclrtMemsetAsync:1");
    ok(aclrtMemsetAsync(other, 64, 0, 64, stream));
    ok(aclrtMemcpyAsync(memory, 64, pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    pinned[3] = 8;
    int64_t before = counter("violations");
    let_go();
    require_status(507013, aclrtSynchronizeStream(stream));
    broke(before, "altered pinned memory");
}

static void pageable_copy_returns_when_done(void)
{
    aclrtStream stream;
    start();
    ok(aclrtCreateStream(&stream));
    void *memory = allocate(64);
    opferrySimInject("aclrtMemcpyAsync:*:slow:50000");
    memset(bytes, 5, 64);
    ok(aclrtMemcpyAsync(memory, 64, bytes, 64, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    memset(bytes, 6, 64);
    ok(aclrtMemcpyAsync(bytes, 64, memory, 64, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    require(bytes[0] == 5);
    ok(aclrtSynchronizeStream(stream));
    ok(aclrtFree(memory));
    ok(aclrtDestroyStream(stream));
    end(0);
}

static void pinned_bounds_and_late_use(void)
{
    char *pinned;
    start();
    void *memory = allocate(256);
    ok(aclrtMallocHost((void **)&pinned, 100));
    breaks(107000, "reach over a pinned block",
           aclrtMemcpy(memory, 256, pinned + 50, 51, ACL_MEMCPY_HOST_TO_DEVICE));
    require(faults_on_access(pinned + 4096));
    ok(aclrtFreeHost(pinned));
    require(faults_on_access(pinned));
    breaks(107000, "that was freed",
           aclrtMemcpy(memory, 256, pinned, 10, ACL_MEMCPY_HOST_TO_DEVICE));
    breaks(107000, "was freed before", aclrtFreeHost(pinned));
    ok(aclrtFree(memory));
    end(3);
}

static void two_streams_without_an_event(void)
{
    aclrtStream one, two;
    start();
    ok(aclrtCreateStream(&one));
    ok(aclrtCreateStream(&two));
    void *memory = allocate(64);
    ok(aclrtMemsetAsync(memory, 64, 1, 64, one));
    breaks(107000, "nothing orders the two", aclrtMemsetAsync(memory, 64, 2, 64, two));
    ok(aclrtSynchronizeStream(one));
    ok(aclrtMemsetAsync(memory, 64, 2, 64, two));
    ok(aclrtSynchronizeStream(two));
    ok(aclrtFree(memory));
    ok(aclrtDestroyStream(one));
    ok(aclrtDestroyStream(two));
    end(1);
}

static void unaligned_copy_on_the_device(void)
{
    aclrtStream stream;
    start();
    ok(aclrtCreateStream(&stream));
    char *memory = allocate(256);
    breaks(107008, "multiples of 64",
           aclrtMemcpyAsync(memory + 128, 64, memory + 32, 64, ACL_MEMCPY_DEVICE_TO_DEVICE,
                            stream));
    ok(aclrtMemcpyAsync(memory + 128, 64, memory, 64, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    ok(aclrtSynchronizeStream(stream));
    ok(aclrtFree(memory));
    ok(aclrtDestroyStream(stream));
    end(1);
}

static const struct check_case cases[] = {
    CASE(freed_before_a_copy_is_synchronised),
    CASE(free_with_synchronisation_waits),
    CASE(read_before_synchronisation),
    CASE(pinned_target_is_read_late),
    CASE(altered_pinned_memory),
    CASE(pageable_copy_returns_when_done),
    CASE(pinned_bounds_and_late_use),
    CASE(two_streams_without_an_event),
    CASE(unaligned_copy_on_the_device),
};

CHECK_MAIN(cases)
