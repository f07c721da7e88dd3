#!/bin/sh
# Everything secret that a cluster needs, made once on one machine:
#
#   deploy/secrets.sh FOLDER NAME...
#
#   ca.pem, ca.key       the authority; ca.key signs peers that come later and belongs in a safe, not on a peer
#   cert.pem, key.pem    one certificate for all peers, with every NAME (or address) that clients use for any of them
#   tokens.toml          what peers are given: who may do what, and the sha256 of each token
#   admin.token          the token itself, for AVOW_TOKEN of whoever manages the cluster
set -eu
if [ $# -lt 2 ]; then
    echo "usage: $0 FOLDER NAME...   for example: $0 secrets localhost 127.0.0.1" >&2
    exit 2
fi
folder=$1
shift
if [ -e "$folder/ca.key" ]; then
    echo "$0: $folder has secrets already; nothing was changed. Choose another folder" >&2
    exit 1
fi
umask 077
mkdir -p "$folder"
names=""
for name in "$@"; do
    case $name in
        *[!0-9.]*) names="$names,DNS:$name" ;;
        *) names="$names,IP:$name" ;;
    esac
done
days=825
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=Avow peers" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout "$folder/ca.key" -out "$folder/ca.pem" 2>/dev/null
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" \
    -keyout "$folder/key.pem" -out "$folder/cert.csr" 2>/dev/null
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "${names#,}" >"$folder/cert.ext"
openssl x509 -req -in "$folder/cert.csr" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -CAcreateserial -days $days \
    -extfile "$folder/cert.ext" -out "$folder/cert.pem" 2>/dev/null
rm -f "$folder/cert.csr" "$folder/cert.ext" "$folder/ca.srl"
openssl rand -hex 32 | tr -d '\n' >"$folder/admin.token"
digest=$(openssl dgst -sha256 -r "$folder/admin.token" | cut -d' ' -f1)
printf '[[token]]\nname = "admin"\nsha256 = "%s"\nadmin = true\n' "$digest" >"$folder/tokens.toml"
# Compose mounts files with the rights they have here, and the peer there is another user. The folder stays closed.
chmod 0644 "$folder/cert.pem" "$folder/key.pem" "$folder/ca.pem" "$folder/tokens.toml"
echo "$folder: certificate for $*, valid for $days days; the admin's token is in $folder/admin.token"
