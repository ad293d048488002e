/* Which faults strike a call. Rules come from the environment, from a file that a test may rewrite
 * while the process runs, and from opferrySimInject. */
#include "faults.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sim_fault_rule *sim_fault_rules;

static void append(struct sim_fault_rule *rules)
{
    struct sim_fault_rule **end = &sim_fault_rules;
    while (*end != NULL)
        end = &(*end)->next;
    *end = rules;
}

static void remove_all(enum sim_fault_origin origin)
{
    for (struct sim_fault_rule **at = &sim_fault_rules; *at != NULL;) {
        struct sim_fault_rule *rule = *at;
        if (rule->origin == origin) {
            *at = rule->next;
            free(rule);
        } else {
            at = &rule->next;
        }
    }
}

static void add_or_exit(const char *spec, enum sim_fault_origin origin, const char *from)
{
    char why[256];
    struct sim_fault_rule *rules = sim_fault_parse(spec, origin, why);
    if (why[0] != '\0') {
        /* With a fault that never strikes, a test would pass for the wrong reason. */
        fprintf(stderr, "opferry-simulator: %s: %s\n", from, why);
        _exit(2);
    }
    append(rules);
}

static void read_file(const char *path)
{
    char text[16384];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[length < 0 ? 0 : length] = '\0';
    remove_all(SIM_FAULT_FILE);
    add_or_exit(text, SIM_FAULT_FILE, path);
}

/* A change shows in the file's number, for tests write a new one and rename it. */
static void look_at_file(void)
{
    static struct stat seen;
    struct stat now;
    if (sim_settings.faults_file == NULL)
        return;
    if (stat(sim_settings.faults_file, &now) != 0)
        memset(&now, 0, sizeof now);
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    seen = now;
    read_file(sim_settings.faults_file);
}

void sim_faults_open(void)
{
    if (sim_settings.faults != NULL)
        add_or_exit(sim_settings.faults, SIM_FAULT_ENVIRONMENT, "OPFERRY_SIM_FAULTS");
}

int opferrySimInject(const char *spec)
{
    char why[256] = "";
    sim_prepare();
    sim_lock();
    if (spec == NULL || *spec == '\0')
        remove_all(SIM_FAULT_INJECTED);
    else
        append(sim_fault_parse(spec, SIM_FAULT_INJECTED, why));
    sim_unlock();
    if (why[0] == '\0')
        return 0;
    fprintf(stderr, "opferry-simulator: opferrySimInject: %s\n", why);
    return -1;
}

static void merge(struct sim_effects *into, const struct sim_effects *from)
{
    if (into->status == 0) {
        into->status = from->status;
        into->immediate = from->immediate;
    }
    into->null_answer |= from->null_answer;
    into->hang |= from->hang;
    into->hang_for_ever |= from->hang_for_ever;
    into->slow_us += from->slow_us;
    if (from->crash_signal != 0)
        into->crash_signal = from->crash_signal;
    if (from->corrupt != 0)
        into->corrupt = from->corrupt;
    if (from->unwritten != 0)
        into->unwritten = from->unwritten;
    if (from->partial != 0)
        into->partial = from->partial;
    if (from->overrun != 0)
        into->overrun = from->overrun;
    if (from->hold[0] != '\0')
        memcpy(into->hold, from->hold, sizeof into->hold);
    if (from->soc[0] != '\0')
        memcpy(into->soc, from->soc, sizeof into->soc);
}

/* Counts the call for a rule and lets it strike. A token, which may be shared between processes,
 * is used up by whoever removes the file. */
static void apply(struct sim_fault_rule *rule, struct sim_effects *effects)
{
    rule->calls++;
    if (rule->calls < rule->first || rule->calls > rule->last)
        return;
    if (rule->token[0] != '\0' && unlink(rule->token) != 0)
        return;
    sim_tally(SIM_TALLY_FAULTS, 1);
    merge(effects, &rule->effects);
}

static bool concerns(const struct sim_fault_rule *rule, enum sim_function function, int device)
{
    return rule->function == function && (rule->device < 0 || rule->device == device);
}

void sim_fault_match(enum sim_function function, enum sim_copy_kind kind, int device,
                     struct sim_effects *effects)
{
    memset(effects, 0, sizeof *effects);
    look_at_file();
    for (struct sim_fault_rule *rule = sim_fault_rules; rule != NULL; rule = rule->next)
        if (!rule->by_content && concerns(rule, function, device) &&
            (rule->kind == SIM_ANY_COPY || rule->kind == kind))
            apply(rule, effects);
}

void sim_fault_match_content(enum sim_function function, int device, float content,
                             struct sim_effects *effects)
{
    for (struct sim_fault_rule *rule = sim_fault_rules; rule != NULL; rule = rule->next)
        if (rule->by_content && concerns(rule, function, device) && rule->content == content)
            apply(rule, effects);
}
