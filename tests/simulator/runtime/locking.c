/* One lock and one condition for all, and the clock. */
#include "base.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

pthread_mutex_t sim_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t sim_changed; /* set up by sim_prepare, for it runs on the monotonic clock */

void sim_lock(void)
{
    pthread_mutex_lock(&sim_mutex);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&sim_mutex);
}

bool sim_wait(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX) {
        pthread_cond_wait(&sim_changed, &sim_mutex);
        return true;
    }
    struct timespec end = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                           .tv_nsec = (long)(deadline_ns % 1000000000)};
    return pthread_cond_timedwait(&sim_changed, &sim_mutex, &end) != ETIMEDOUT;
}

int64_t sim_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void sim_sleep_us(int64_t microseconds)
{
    struct timespec length = {.tv_sec = (time_t)(microseconds / 1000000),
                              .tv_nsec = (long)(microseconds % 1000000) * 1000};
    while (nanosleep(&length, &length) != 0 && errno == EINTR)
        continue;
}

bool sim_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

void sim_crash(int signal_number)
{
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, signal_number);
    signal(signal_number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    raise(signal_number);
}

_Noreturn void sim_block_for_ever(void)
{
    for (;;)
        pause();
}
