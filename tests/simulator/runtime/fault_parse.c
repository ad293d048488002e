/* The grammar of fault rules; README.md describes it. */
#include "faults.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORDS 6

static bool read_integer(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    *value = number;
    return end != text && *end == '\0' && errno == 0;
}

/* function[@copy kind][#physical device] */
static bool parse_function(char *word, struct sim_fault_rule *rule, char why[256])
{
    static const char *const kinds[] = {"", "h2d", "d2h", "d2d", "h2h"};
    char *device = strchr(word, '#');
    if (device != NULL) {
        *device++ = '\0';
        int64_t number;
        if (!read_integer(device, &number) || number < 0 || number >= SIM_MAX_DEVICES) {
            snprintf(why, 256, "\"%s\" is no device", device);
            return false;
        }
        rule->device = (int)number;
    }
    char *kind = strchr(word, '@');
    if (kind != NULL) {
        *kind++ = '\0';
        for (int i = SIM_H2D; i <= SIM_H2H; i++)
            if (strcmp(kind, kinds[i]) == 0)
                rule->kind = (enum sim_copy_kind)i;
        if (rule->kind == SIM_ANY_COPY) {
            snprintf(why, 256, "\"%s\" is none of h2d, d2h, d2d, h2h", kind);
            return false;
        }
    }
    for (int i = 0; i < SIM_FUNCTION_COUNT; i++) {
        if (strcmp(word, sim_function_name((enum sim_function)i)) == 0) {
            rule->function = (enum sim_function)i;
            return true;
        }
    }
    snprintf(why, 256, "there is no function \"%s\"", word);
    return false;
}

/* n, n+, n-m, *, or content=number */
static bool parse_when(char *word, struct sim_fault_rule *rule, char why[256])
{
    rule->first = 1;
    rule->last = INT64_MAX;
    if (strcmp(word, "*") == 0)
        return true;
    if (strncmp(word, "content=", 8) == 0) {
        char *end;
        rule->by_content = true;
        rule->content = strtof(word + 8, &end);
        if (end != word + 8 && *end == '\0')
            return true;
    } else {
        size_t length = strlen(word);
        char *dash = strchr(word, '-');
        if (length > 0 && word[length - 1] == '+') {
            word[length - 1] = '\0';
            if (read_integer(word, &rule->first) && rule->first > 0)
                return true;
        } else if (dash != NULL) {
            *dash = '\0';
            if (read_integer(word, &rule->first) && read_integer(dash + 1, &rule->last) &&
                rule->first > 0 && rule->first <= rule->last)
                return true;
        } else if (read_integer(word, &rule->first) && rule->first > 0) {
            rule->last = rule->first;
            return true;
        }
    }
    snprintf(why, 256, "\"%s\" is no call; give n, n+, n-m, * or content=number", word);
    return false;
}

/* Reads an action's argument, if there is one, as a number of at least *least*. */
static bool parse_number(const char *argument, int64_t otherwise, int64_t least, int64_t *value)
{
    *value = otherwise;
    return argument == NULL || (read_integer(argument, value) && *value >= least);
}

static bool parse_action(const char *action, const char *argument, struct sim_effects *effects,
                         char why[256])
{
    int64_t number = 0;
    bool good = true;
    if (read_integer(action, &number)) {
        effects->status = (aclError)number;
        good = argument == NULL && number > 0;
    } else if (strcmp(action, "return") == 0) {
        good = argument != NULL && parse_number(argument, 0, 1, &number);
        effects->status = (aclError)number;
        effects->immediate = true;
    } else if (strcmp(action, "slow") == 0) {
        good = argument != NULL && parse_number(argument, 0, 0, &effects->slow_us);
    } else if (strcmp(action, "hold") == 0) {
        good = argument != NULL && strlen(argument) < sizeof effects->hold;
        if (good)
            memcpy(effects->hold, argument, strlen(argument) + 1);
    } else if (strcmp(action, "hang") == 0) {
        effects->hang = argument == NULL;
        effects->hang_for_ever = argument != NULL;
        good = argument == NULL || strcmp(argument, "forever") == 0;
    } else if (strcmp(action, "crash") == 0) {
        good = parse_number(argument, SIGSEGV, 1, &number);
        effects->crash_signal = (int)number;
    } else if (strcmp(action, "null") == 0) {
        effects->null_answer = true;
        good = argument == NULL;
    } else if (strcmp(action, "soc") == 0) {
        good = argument != NULL && strlen(argument) < sizeof effects->soc;
        if (good)
            memcpy(effects->soc, argument, strlen(argument) + 1);
    } else {
        good = parse_number(argument, 0, 0, &number) && number < 4;
        if (strcmp(action, "corrupt") == 0)
            effects->corrupt = (int)number + 1;
        else if (strcmp(action, "unwritten") == 0)
            effects->unwritten = (int)number + 1;
        else if (strcmp(action, "partial") == 0)
            effects->partial = (int)number + 1;
        else if (strcmp(action, "overrun") == 0)
            effects->overrun = (int)number + 1;
        else
            good = false;
    }
    if (!good)
        snprintf(why, 256, "cannot do \"%s%s%s\"", action, argument == NULL ? "" : ":",
                 argument == NULL ? "" : argument);
    return good;
}

static bool check_rule(const struct sim_fault_rule *rule, char why[256])
{
    const struct sim_effects *e = &rule->effects;
    bool launches = rule->function == SIM_aclnnApplyRotaryPosEmbGrad ||
                    rule->function == SIM_aclnnApplyRotaryPosEmbV2;
    bool copies = rule->function == SIM_aclrtMemcpy || rule->function == SIM_aclrtMemcpyAsync;
    bool marks_output = e->corrupt != 0 || e->unwritten != 0 || e->partial != 0 || e->overrun != 0;
    if (rule->by_content && !launches)
        snprintf(why, 256, "content is known to a kernel only");
    else if (rule->by_content && e->immediate)
        snprintf(why, 256, "by its content a kernel can be made to fail, not the call of it");
    else if (marks_output && !launches)
        snprintf(why, 256, "only a kernel has outputs");
    else if (rule->kind != SIM_ANY_COPY && !copies)
        snprintf(why, 256, "only copies have a direction");
    else
        return true;
    return false;
}

static bool parse_rule(char *text, struct sim_fault_rule *rule, char why[256])
{
    char *words[MAX_WORDS] = {NULL};
    int count = 0;
    for (char *word = text; word != NULL; count++) {
        if (count == MAX_WORDS) {
            snprintf(why, 256, "too many parts");
            return false;
        }
        words[count] = word;
        word = strchr(word, ':');
        if (word != NULL)
            *word++ = '\0';
    }
    if (count > 3 && strncmp(words[count - 1], "token=", 6) == 0) {
        snprintf(rule->token, sizeof rule->token, "%s", words[count - 1] + 6);
        words[--count] = NULL;
    }
    if (count < 3 || count > 4) {
        snprintf(why, 256, "give function:when:action[:argument][:token=path]");
        return false;
    }
    return parse_function(words[0], rule, why) && parse_when(words[1], rule, why) &&
           parse_action(words[2], words[3], &rule->effects, why) && check_rule(rule, why);
}

struct sim_fault_rule *sim_fault_parse(const char *spec, enum sim_fault_origin origin,
                                       char why[256])
{
    struct sim_fault_rule *first = NULL, **end = &first;
    char *copy = strdup(spec), *rest = copy;
    why[0] = '\0';
    for (char *text = strtok_r(copy, ";\n", &rest); text != NULL && why[0] == '\0';
         text = strtok_r(NULL, ";\n", &rest)) {
        struct sim_fault_rule *rule = calloc(1, sizeof *rule);
        rule->origin = origin;
        rule->device = -1;
        *end = rule;
        end = &rule->next;
        parse_rule(text, rule, why);
    }
    free(copy);
    while (why[0] != '\0' && first != NULL) {
        struct sim_fault_rule *rule = first;
        first = rule->next;
        free(rule);
    }
    return first;
}
