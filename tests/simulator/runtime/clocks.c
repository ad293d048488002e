/* Clocks of streams, and the hazards that they decide: memory, tensors and events that a task may
 * still be using because nothing has waited for it. */
#include "objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sim_clock_raise(struct sim_clock *clock, uint64_t stream, uint64_t sequence)
{
    for (size_t i = 0; i < clock->count; i++) {
        if (clock->entries[i].stream == stream) {
            if (clock->entries[i].sequence < sequence)
                clock->entries[i].sequence = sequence;
            return;
        }
    }
    if (clock->count == clock->capacity) {
        clock->capacity = clock->capacity == 0 ? 4 : clock->capacity * 2;
        clock->entries = realloc(clock->entries, clock->capacity * sizeof clock->entries[0]);
    }
    clock->entries[clock->count].stream = stream;
    clock->entries[clock->count++].sequence = sequence;
}

void sim_clock_merge(struct sim_clock *clock, const struct sim_clock *other)
{
    for (size_t i = 0; i < other->count; i++)
        sim_clock_raise(clock, other->entries[i].stream, other->entries[i].sequence);
}

static uint64_t clock_read(const struct sim_clock *clock, uint64_t stream)
{
    for (size_t i = 0; i < clock->count; i++)
        if (clock->entries[i].stream == stream)
            return clock->entries[i].sequence;
    return 0;
}

void sim_clock_clear(struct sim_clock *clock)
{
    free(clock->entries);
    memset(clock, 0, sizeof *clock);
}

static void describe(const struct sim_task *task, char *text, size_t size)
{
    static const char *const names[] = {"a copy", "a memset", "an event", "a wait", "a kernel"};
    snprintf(text, size, "%s (task %llu of stream %llu)", names[task->kind],
             (unsigned long long)task->sequence,
             (unsigned long long)task->stream->object.serial);
}

static bool touches(const struct sim_task *task, uintptr_t start, size_t bytes, bool writes_only)
{
    for (int i = 0; i < task->use_count; i++) {
        const struct sim_use *use = &task->uses[i];
        if ((use->writes || !writes_only) && use->start < start + bytes &&
            start < use->start + use->bytes)
            return true;
    }
    return false;
}

bool sim_clash(const struct sim_use *use, const struct sim_stream *by, char *text, size_t size)
{
    for (const struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next) {
        if (stream == by)
            continue; /* a stream's own tasks run one after the other */
        uint64_t known = by == NULL ? 0 : clock_read(&by->clock, stream->object.serial);
        for (const struct sim_task *task = stream->first; task != NULL; task = task->next) {
            if (task->sequence > known && touches(task, use->start, use->bytes, !use->writes)) {
                describe(task, text, size);
                return true;
            }
        }
    }
    return false;
}

bool sim_in_use(uintptr_t start, size_t bytes, char *text, size_t size)
{
    struct sim_use use = {start, bytes, true};
    return sim_clash(&use, NULL, text, size);
}

bool sim_event_in_use(const struct sim_event *event)
{
    for (const struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next)
        for (const struct sim_task *task = stream->first; task != NULL; task = task->next)
            if (task->event == event)
                return true;
    return false;
}

bool sim_tensor_in_use(uint64_t serial, char text[160])
{
    for (const struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next)
        for (const struct sim_task *task = stream->first; task != NULL; task = task->next)
            for (int i = 0; i < task->tensor_count; i++)
                if (task->tensors[i] == serial) {
                    describe(task, text, 160);
                    return true;
                }
    return false;
}

void sim_retire_task(struct sim_task *task)
{
    struct sim_stream *stream = task->stream;
    if (task->previous != NULL)
        task->previous->next = task->next;
    else
        stream->first = task->next;
    if (task->next != NULL)
        task->next->previous = task->previous;
    else
        stream->last = task->previous;
    sim_clock_clear(&task->clock);
    free(task);
}

void sim_retire(struct sim_stream *stream, uint64_t sequence)
{
    struct sim_clock reached = {0};
    while (stream->first != NULL && stream->first->done && stream->first->sequence <= sequence) {
        /* Who has waited for this stream has also waited for what it waited for. */
        if (stream->first->kind == SIM_TASK_WAIT)
            sim_clock_merge(&reached, &stream->first->clock);
        sim_retire_task(stream->first);
    }
    sim_retire_clock(&reached);
    sim_clock_clear(&reached);
}

void sim_retire_clock(const struct sim_clock *clock)
{
    for (struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next) {
        uint64_t sequence = clock_read(clock, stream->object.serial);
        if (sequence > 0)
            sim_retire(stream, sequence);
    }
}
