/* Device memory: what a pointer may be used for. */
#include "check.h"

static unsigned char bytes[256];

static void *allocate(size_t size)
{
    void *memory = NULL;
    ok(aclrtMalloc(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST));
    return memory;
}

static void host_access_faults(void)
{
    start();
    void *memory = allocate(100);
    require(faults_on_access(memory));
    ok(aclrtFree(memory));
    end(0);
}

static void aligned_rounded_and_dirty(void)
{
    start();
    for (size_t size = 1; size < 100; size += 9) {
        void *memory = allocate(size);
        require((uintptr_t)memory % 64 == 0);
        require(counter("live.device_bytes") == (int64_t)((size + 31) / 32 * 32));
        ok(aclrtMemcpy(bytes, sizeof bytes, memory, size, ACL_MEMCPY_DEVICE_TO_HOST));
        require(bytes[0] == 0xA5 && bytes[size - 1] == 0xA5);
        ok(aclrtFree(memory));
    }
    end(0);
}

static void size_zero(void)
{
    void *memory;
    start();
    breaks(107000, "size of 0", aclrtMalloc(&memory, 0, ACL_MEM_MALLOC_HUGE_FIRST));
    breaks(107000, "size of 0", aclrtMallocHost(&memory, 0));
    end(2);
}

static void use_after_free(void)
{
    start();
    void *memory = allocate(64);
    ok(aclrtFree(memory));
    breaks(107000, "was freed",
           aclrtMemcpy(memory, 64, bytes, 64, ACL_MEMCPY_HOST_TO_DEVICE));
    end(1);
}

static void addresses_are_not_used_again_soon(void)
{
    start();
    void *first = allocate(64);
    ok(aclrtFree(first));
    for (int i = 0; i < 1000; i++) {
        void *memory = allocate(64);
        require(memory != first);
        ok(aclrtFree(memory));
    }
    end(0);
}

static void double_free(void)
{
    start();
    void *memory = allocate(64);
    ok(aclrtFree(memory));
    breaks(107000, "was freed", aclrtFree(memory));
    end(1);
}

static void foreign_pointers(void)
{
    start();
    char *memory = allocate(64);
    breaks(107000, "no device memory", aclrtFree(bytes));
    breaks(107000, "is null", aclrtFree(NULL));
    breaks(107000, "not the start", aclrtFree(memory + 32));
    breaks(107000, "no device memory",
           aclrtMemcpy(bytes, 64, bytes + 64, 64, ACL_MEMCPY_HOST_TO_DEVICE));
    breaks(107000, "is a device pointer",
           aclrtMemcpy(memory, 64, bytes, 64, ACL_MEMCPY_HOST_TO_HOST));
    breaks(107000, "no pinned block", aclrtFreeHost(bytes));
    ok(aclrtFree(memory));
    end(6);
}

static void out_of_bounds(void)
{
    start();
    char *memory = allocate(64);
    breaks(107000, "of an allocation of 64",
           aclrtMemcpy(memory, 128, bytes, 65, ACL_MEMCPY_HOST_TO_DEVICE));
    breaks(107000, "of an allocation of 64",
           aclrtMemcpy(bytes, 128, memory + 32, 33, ACL_MEMCPY_DEVICE_TO_HOST));
    breaks(107000, "in no allocation", aclrtMemset(memory + 64, 1, 0, 1));
    breaks(107000, "larger than the destination",
           aclrtMemcpy(memory, 32, bytes, 64, ACL_MEMCPY_HOST_TO_DEVICE));
    breaks(107000, "count of 0", aclrtMemcpy(memory, 64, bytes, 0, ACL_MEMCPY_HOST_TO_DEVICE));
    ok(aclrtFree(memory));
    end(5);
}

static void memory_is_bounded(void)
{
    set("OPFERRY_SIM_DEVICE_MEMORY_BYTES", "1048576");
    size_t left, total;
    void *memory;
    start();
    void *half = allocate(524288);
    require_status(207001, aclrtMalloc(&memory, 524289, ACL_MEM_MALLOC_HUGE_FIRST));
    require_status(207001, aclrtMalloc(&memory, SIZE_MAX, ACL_MEM_MALLOC_HUGE_FIRST));
    ok(aclrtGetMemInfo(ACL_HBM_MEM, &left, &total));
    require(total == 1048576 && left == 524288);
    ok(aclrtFree(half));
    for (int i = 0; i < 100; i++)
        ok(aclrtFree(allocate(1048576)));
    end(0);
}

static void memory_of_another_device(void)
{
    start();
    void *memory = allocate(64);
    ok(aclrtSetDevice(1));
    breaks(107000, "memory of device 0",
           aclrtMemcpy(memory, 64, bytes, 64, ACL_MEMCPY_HOST_TO_DEVICE));
    breaks(107000, "memory of device 0", aclrtFree(memory));
    ok(aclrtResetDevice(1));
    ok(aclrtSetDevice(0));
    ok(aclrtFree(memory));
    ok(aclrtResetDevice(0));
    end(2);
}

static void leak_is_counted_and_found(void)
{
    void *pinned;
    start();
    allocate(64);
    ok(aclrtMallocHost(&pinned, 64));
    require(counter("live.device_allocations") == 1 && counter("live.pinned_allocations") == 1);
    breaks(0, "64 bytes still there", aclrtResetDevice(0));
    breaks(0, "1 pinned host allocations", aclFinalize());
}

static const struct check_case cases[] = {
    CASE(host_access_faults),
    CASE(aligned_rounded_and_dirty),
    CASE(size_zero),
    CASE(use_after_free),
    CASE(addresses_are_not_used_again_soon),
    CASE(double_free),
    CASE(foreign_pointers),
    CASE(out_of_bounds),
    CASE(memory_is_bounded),
    CASE(memory_of_another_device),
    CASE(leak_is_counted_and_found),
};

CHECK_MAIN(cases)
