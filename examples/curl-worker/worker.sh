#!/bin/sh
# An outside worker in nothing but curl: one whole round of a streaming query. It pushes three
# orders, registers a query, pops the orders under the query's consumer group, reads the query's
# state, commits state, sink message and ack in one cycle, and pops the sink message.
#
# FOLDMQ_URL    the broker, http://127.0.0.1:6632 by default
# FOLDMQ_TOKEN  a bearer token, where the broker asks for one
set -eu

url=${FOLDMQ_URL:-http://127.0.0.1:6632}
# Fresh names for every run, so that a run neither sees nor disturbs another.
run=$(date +%s)-$$
source_queue=curl-worker.orders.$run
sink_queue=curl-worker.totals.$run
query=curl-worker-$run
newline='
'

say() { printf '%s\n' "$*"; }
fail() {
    printf 'curl-worker: %s\n' "$*" >&2
    exit 1
}

# call METHOD PATH [BODY]: sets $status and $body. Any answer but a 2xx ends the run.
call() {
    method=$1 path=$2
    set -- -sS -m 60 -X "$method" -w '\n%{http_code}' "$url$path" ${3+-d "$3"}
    set -- "$@" -H 'content-type: application/json'
    if [ -n "${FOLDMQ_TOKEN:-}" ]; then
        set -- "$@" -H "authorization: Bearer $FOLDMQ_TOKEN"
    fi
    answer=$(curl "$@") || fail "$method $path: no answer from $url"
    status=${answer##*"$newline"}
    body=${answer%"$newline"*}
    case $status in
    2??) ;;
    *) fail "$method $path: HTTP $status: $body" ;;
    esac
}

# A 200 says that the broker answered; only the body says whether it did what was asked.
need_success() {
    if ! printf '%s' "$body" | grep -Eq '"success" *: *true' ||
        printf '%s' "$body" | grep -Eq '"success" *: *false'; then
        fail "$1: $body"
    fi
}

# texts NAME, numbers NAME: the values of every member of that name in $body, one a line.
texts() {
    printf '%s' "$body" | grep -Eo "\"$1\" *: *\"[^\"]*\"" | sed 's/^"[^"]*" *: *"//; s/"$//'
}
numbers() {
    printf '%s' "$body" | grep -Eo "\"$1\" *: *-?[0-9]+" | sed 's/^"[^"]*" *: *//'
}

say "1. push three orders to $source_queue"
item() {
    printf '{"queue":"%s","partition":"acme","payload":{"order":%d,"amount":%d}}' \
        "$source_queue" "$1" "$2"
}
call POST /api/v1/push "{\"items\":[$(item 1 20),$(item 2 15),$(item 3 7)]}"
queued=$(texts status | grep -c '^queued$' || true)
[ "$queued" -eq 3 ] || fail "push: 3 messages sent, $queued queued: $body"

say "2. register the query $query"
# The hash stands for what the worker computes: another one on the same name is refused with 409.
call POST /streams/v1/queries "{\"name\":\"$query\",\"source_queue\":\"$source_queue\",
    \"sink_queue\":\"$sink_queue\",\"config_hash\":\"curl-worker-sum-of-amounts-1\"}"
need_success "register"
query_id=$(texts query_id | head -n 1)
[ -n "$query_id" ] || fail "register: no query_id: $body"

say "3. pop as streams.$query"
pop="batch=100&wait=true&timeout=10000"
call GET "/api/v1/pop/queue/$source_queue?$pop&consumerGroup=streams.$query&subscriptionMode=all"
[ "$status" -ne 204 ] || fail "pop: the queue is empty"
need_success "pop"
partition_id=$(texts partitionId | head -n 1)
lease_id=$(texts leaseId | head -n 1)
last=$(texts transactionId | tail -n 1)
count=$(texts transactionId | grep -c . || true)
[ "$count" -eq 3 ] || fail "pop: 3 messages expected, $count came: $body"
sum=0
for amount in $(numbers amount); do
    sum=$((sum + amount))
done
say "   $count orders, $sum in all"

say "4. read the state of the query for this partition"
call POST /streams/v1/state/get \
    "{\"query_id\":\"$query_id\",\"partition_id\":\"$partition_id\",\"keys\":[\"acme\"]}"
need_success "state/get"
# A row that does not exist is not in the answer: the first round begins at 0.
before=$(numbers sum | head -n 1)
total=$((${before:-0} + sum))
say "   ${before:-nothing} before, $total now"

say "5. commit state, sink message and ack in one cycle"
call POST /streams/v1/cycle "{\"query_id\":\"$query_id\",\"partition_id\":\"$partition_id\",
    \"consumer_group\":\"streams.$query\",
    \"state_ops\":[{\"type\":\"upsert\",\"key\":\"acme\",\"value\":{\"sum\":$total}}],
    \"push_items\":[{\"queue\":\"$sink_queue\",\"partition\":\"acme\",
        \"payload\":{\"customer\":\"acme\",\"total\":$total}}],
    \"ack\":{\"transactionId\":\"$last\",\"leaseId\":\"$lease_id\",
        \"status\":\"completed\",\"count\":$count}}"
need_success "cycle"

say "6. pop the result from $sink_queue"
call GET "/api/v1/pop/queue/$sink_queue?$pop&autoAck=true"
[ "$status" -ne 204 ] || fail "pop: nothing came out of the sink queue"
need_success "pop of the sink queue"
result=$(numbers total | head -n 1)
[ "$result" = "$total" ] || fail "the sink message says ${result:-nothing}, not $total: $body"
printf '%s' "$body" | grep -Eo '"data" *: *\{[^}]*\}' | sed 's/^"data" *: */   /'
say "done"
