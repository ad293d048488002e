#!/usr/bin/env bash
# Prepares an Envoy for its end without ending what runs through it: clients are told to connect again
# (GOAWAY), new connections are refused after 5 seconds, and this waits until no stream is left, at
# most SECONDS.
#
#   drain.sh SECONDS [ADMIN_PORT]
#
# For the image's preStop hook and systemd's ExecStop: Envoy itself cuts all streams at SIGTERM. It
# takes nothing but bash, since Envoy's image has no curl.
set -u
seconds=$1 port=${2:-9901}

ask() {
    exec 3<> "/dev/tcp/127.0.0.1/$port" || return 1 # it has ended
    printf '%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
    cat <&3
    exec 3>&-
}

# Not ready any more, so that services send nobody here. Clients that are here are told to connect
# again; those that come yet, since services take a moment, are still served.
ask POST /healthcheck/fail > /dev/null || exit 0
ask POST '/drain_listeners?graceful&skip_exit' > /dev/null || exit 0
sleep 5
ask POST /drain_listeners > /dev/null || exit 0
for ((waited = 5; waited < seconds; waited++)); do
    active=$(ask GET '/stats?filter=^http\.outside\.downstream_rq_active$') || exit 0
    if [[ $active == *'downstream_rq_active: 0'* ]]; then
        exit 0
    fi
    sleep 1
done
