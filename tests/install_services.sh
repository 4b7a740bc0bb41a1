#!/usr/bin/env bash
# Installs the real servers that some tests use, where they are missing. Without the right to install it only says so.
set -euo pipefail

missing=()
command -v tmux >/dev/null || missing+=(tmux)
command -v strace >/dev/null || missing+=(strace)
command -v faketime >/dev/null || missing+=(faketime)
command -v postgres >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null || missing+=(postgresql)
PATH="$PATH:/usr/sbin" command -v pgbouncer >/dev/null || missing+=(pgbouncer)
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing+=(prometheus)
command -v chromium >/dev/null || missing+=(chromium fonts-liberation)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)

# What tests take from npm, as the lock file says: LangGraph's JavaScript SDK in both majors, RemoteGraph, React, a bundler and axe-core.
install_clients() {
  command -v npm >/dev/null || return 0
  cd "$(dirname "$0")/clients"
  [ node_modules/.package-lock.json -nt package-lock.json ] && return 0
  npm ci --ignore-scripts --no-audit --no-fund --loglevel=error || echo "test services: npm cannot install what tests take from it"
}

[ ${#missing[@]} -gt 0 ] || { install_clients; echo "test services: all there"; exit 0; }
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "test services: missing ${missing[*]}; install them, or the tests that need them are skipped"
  install_clients
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"
install_clients
