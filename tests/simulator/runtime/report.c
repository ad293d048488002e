/* Violations, and the report as JSON. */
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEPT_VIOLATIONS 256

static char *violations[KEPT_VIOLATIONS];

const char *opferrySimViolation(int64_t index)
{
    sim_prepare();
    sim_lock();
    const char *text = index < 0 || index >= KEPT_VIOLATIONS ? NULL : violations[index];
    sim_unlock();
    return text;
}

void sim_record_violation(const char *text, bool may_abort)
{
    int64_t index = sim_tally_value(SIM_TALLY_VIOLATIONS);
    if (index < KEPT_VIOLATIONS)
        violations[index] = strdup(text);
    sim_tally(SIM_TALLY_VIOLATIONS, 1);
    fprintf(stderr, "opferry-simulator: violation: %s\n", text);
    /* A worker may be killed at any moment: what it did wrong must be on file by then. */
    sim_write_report();
    if (may_abort && sim_settings.abort_on_violation)
        abort();
}

static void write_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(file, "\\u%04x", *c);
        else
            fputc(*c, file);
    }
    fputc('"', file);
}

/* Writes the counters whose names begin with *prefix*, or, if it is empty, have no dot. */
static void write_group(FILE *file, const char *title, const char *prefix)
{
    int count;
    const struct sim_counter *counters = sim_counter_list(&count);
    size_t skipped = strlen(prefix);
    bool first = true;
    fprintf(file, "  \"%s\": {", title);
    for (int i = 0; i < count; i++) {
        const char *name = counters[i].name;
        bool belongs = skipped == 0 ? strchr(name, '.') == NULL
                                    : strncmp(name, prefix, skipped) == 0;
        if (!belongs)
            continue;
        fprintf(file, "%s\n    \"%s\": %lld", first ? "" : ",", name + skipped,
                (long long)counters[i].value);
        first = false;
    }
    fprintf(file, "\n  },\n");
}

static int write_report_to(const char *path)
{
    char name[1024], unfinished[1100];
    sim_expand_path(path, name, sizeof name);
    snprintf(unfinished, sizeof unfinished, "%s.%ld.tmp", name, (long)getpid());
    FILE *file = fopen(unfinished, "w");
    if (file == NULL)
        return -1;
    fprintf(file, "{\n  \"pid\": %ld,\n  \"soc\": \"%s\",\n", (long)getpid(), sim_settings.soc);
    fprintf(file, "  \"initialised\": %s,\n  \"finalised\": %s,\n",
            sim_initialised ? "true" : "false", sim_finalised ? "true" : "false");
    write_group(file, "live", "live.");
    write_group(file, "total", "total.");
    write_group(file, "peak", "peak.");
    write_group(file, "bytes", "bytes.");
    write_group(file, "calls", "calls.");
    write_group(file, "counts", "");
    fprintf(file, "  \"violations\": [");
    for (int i = 0; i < KEPT_VIOLATIONS && violations[i] != NULL; i++) {
        fprintf(file, "%s\n    ", i == 0 ? "" : ",");
        write_text(file, violations[i]);
    }
    fprintf(file, "\n  ]\n}\n");
    bool written = !ferror(file);
    /* A reader never sees half a report. */
    if (fclose(file) != 0 || !written || rename(unfinished, name) != 0)
        return -1;
    return 0;
}

void sim_write_report(void)
{
    if (sim_settings.report != NULL && write_report_to(sim_settings.report) != 0)
        fprintf(stderr, "opferry-simulator: cannot write the report to %s\n", sim_settings.report);
}

int opferrySimReport(const char *path)
{
    sim_prepare();
    sim_lock();
    int answer = write_report_to(path);
    sim_unlock();
    return answer;
}
