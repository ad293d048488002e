#!/usr/bin/env bash
# Makes the certificates of a farm, for a lab that has no authority of its own.
#
#   deploy/certificates.sh FOLDER NAME...
#
# FOLDER gets what deploy/compose and deploy/k8s name; NAMEs are those under which users call the
# farm, host names or IP addresses. What is there already stays, authorities for ten years: to renew
# a certificate, each year, delete its tls.crt and run this again; Envoy and servers find the new one.
# The authorities' keys, in FOLDER/authorities, belong on no server.
set -eu -o pipefail
umask 022 # keys are made for their owner alone

if (($# < 2)); then
    echo "usage: $0 FOLDER NAME...: the folder to make, and the names under which users call the farm" >&2
    exit 2
fi
folder=$1
shift

# CN EXTENSIONS ARGUMENTS...: a key and a certificate
make() {
    local name=$1 extensions=$2
    shift 2
    openssl req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" \
        -config <(printf '[req]\ndistinguished_name=dn\nx509_extensions=extensions\n[dn]\n[extensions]\n%s\n' "$extensions") \
        "$@" 2> /dev/null
}

# NAME: an authority of its own, and a copy of its certificate for those who check by it
authority() {
    local place=$folder/authorities/$1
    if [[ ! -e $place/ca.crt ]]; then
        mkdir -p "$place"
        chmod 700 "$folder/authorities"
        make "opferry $1" $'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash' \
            -days 3650 -keyout "$place/ca.key" -out "$place/ca.crt"
    fi
    mkdir -p "$folder/$1-authorities"
    cp "$place/ca.crt" "$folder/$1-authorities/ca.crt"
}

# FOLDER AUTHORITY CN NAME...: a certificate of an authority's
certificate() {
    local place=$folder/$1 by=$folder/authorities/$2 name=$3 alternatives=() alternative
    shift 3
    [[ -e $place/tls.crt ]] && return
    mkdir -p "$place"
    for alternative; do
        if [[ $alternative =~ ^[0-9.]+$|: ]]; then
            alternatives+=("IP:$alternative")
        else
            alternatives+=("DNS:$alternative")
        fi
    done
    make "$name" "basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectAltName=$(
        IFS=,
        echo "${alternatives[*]}"
    )" -days 397 -CA "$by/ca.crt" -CAkey "$by/ca.key" -keyout "$place/new.key" -out "$place/new.crt"
    # who watches the folder reads them again when the second is in its place
    mv "$place/new.key" "$place/tls.key"
    mv "$place/new.crt" "$place/tls.crt"
}

authority outside
authority users
authority inside
certificate outside outside "$1" "$@"
certificate envoy-inside inside opferry-envoy opferry-envoy
certificate servers-inside inside opferry-servers opferry-servers \
    opferry-servers.opferry.svc.cluster.local '*.opferry-servers.opferry.svc.cluster.local'
# for who asks every server itself: queue, cancel, lease
certificate direct inside opferry-direct opferry-direct
