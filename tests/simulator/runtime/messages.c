/* The message of a thread's last failure, and what statuses are called. */
#include "messages.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_key_t key;

static void forget_thread(void *thread)
{
    struct sim_thread *gone = thread;
    free(gone->returned);
    free(gone);
}

void sim_messages_open(void)
{
    pthread_key_create(&key, forget_thread);
}

struct sim_thread *sim_thread(void)
{
    static uint64_t last_number;
    struct sim_thread *thread = pthread_getspecific(key);
    if (thread == NULL) {
        thread = calloc(1, sizeof *thread);
        thread->number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
        pthread_setspecific(key, thread);
    }
    return thread;
}

static void set_message(const char *text)
{
    struct sim_thread *thread = sim_thread();
    snprintf(thread->message, sizeof thread->message, "%s", text);
}

/* Reads and clears; what it returns is valid until this thread's next call of it. */
const char *aclGetRecentErrMsg(void)
{
    sim_prepare();
    struct sim_thread *thread = sim_thread();
    free(thread->returned);
    thread->returned = thread->message[0] == '\0' ? NULL : strdup(thread->message);
    thread->message[0] = '\0';
    return thread->returned;
}

static void compose(char *text, size_t size, enum sim_function function, const char *format,
                    va_list arguments)
{
    int used = snprintf(text, size, "%s: ", sim_function_name(function));
    vsnprintf(text + used, size - (size_t)used, format, arguments);
}

aclError sim_violate(struct sim_call *call, aclError status, const char *format, ...)
{
    char text[SIM_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    compose(text, sizeof text, call->function, format, arguments);
    va_end(arguments);
    bool misuse = status / 1000 == 107 || status / 1000 == 100;
    if ((call->needs & SIM_ACLNN) != 0 && misuse) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, " (runtime status %d)", status);
        status = ACLNN_ERR_RUNTIME_ERROR;
    }
    set_message(text);
    sim_record_violation(text, true);
    return status;
}

aclError sim_refuse(struct sim_call *call, aclError status, const char *format, ...)
{
    char text[SIM_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    compose(text, sizeof text, call->function, format, arguments);
    va_end(arguments);
    set_message(text);
    return status;
}

const char *sim_status_name(aclError status)
{
    static const struct {
        aclError status;
        const char *name;
    } names[] = {
        {107019, "wait timeout"},
        {107020, "task timeout"},
        {107022, "device task abort"},
        {107023, "stream abort"},
        {161001, "parameter is null"},
        {161002, "parameter invalid"},
        {207001, "memory allocation"},
        {207007, "no event resource"},
        {207008, "no stream resource"},
        {207018, "device out of memory"},
        {361001, "runtime error"},
        {507000, "runtime internal error"},
        {507010, "lost heartbeat"},
        {507011, "model execution"},
        {507013, "system DMA error"},
        {507014, "AI core timeout"},
        {507015, "AI core exception"},
        {507016, "AI core trap"},
        {507017, "AI CPU timeout"},
        {507018, "AI CPU exception"},
        {507033, "device setup error"},
        {507034, "vector core timeout"},
        {507035, "vector core exception"},
        {507046, "stream synchronisation timeout"},
        {507053, "device memory error"},
        {507054, "HBM multi-bit ECC error"},
        {507899, "driver internal error"},
        {507901, "host-device channel closed"},
        {561002, "tiling error"},
        {561003, "kernel not found"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].status == status)
            return names[i].name;
    return "status";
}
