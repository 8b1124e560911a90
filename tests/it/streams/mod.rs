//! The three `/streams/v1` routes of outside workers, over real HTTP.

mod ack;
mod around;
mod concurrency;
mod locks;
mod lost;
mod ops;
mod registration;
mod request;
mod response;
mod sdk;
mod sinks;
mod state;
mod storage;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::{Answer, Client, Database, TestServer, eventually};

const QUERIES: &str = "/streams/v1/queries";
const STATE: &str = "/streams/v1/state/get";
const CYCLE: &str = "/streams/v1/cycle";
const GROUP: &str = "streams.q";

/// Adds the keys of `more` to an object.
fn with(mut body: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn upsert(key: &str, value: &Value) -> Value {
    json!({"type": "upsert", "key": key, "value": value})
}

fn delete(key: &str) -> Value {
    json!({"type": "delete", "key": key})
}

fn item(queue: &str, partition: &str, payload: impl Into<Value>) -> Value {
    json!({"queue": queue, "partition": partition, "payload": payload.into()})
}

/// `{"n": i}` for each of the numbers.
fn numbers(range: std::ops::Range<usize>) -> Vec<Value> {
    range.map(|n| json!({"n": n})).collect()
}

/// The numbers that messages carry.
fn numbers_of(messages: &[Value]) -> Vec<u64> {
    messages.iter().map(|m| m["data"]["n"].as_u64().expect("a number")).collect()
}

/// The leased messages of one partition.
#[derive(Clone, Debug)]
struct Lane {
    id: String,
    name: String,
    lease: String,
    messages: Vec<Value>,
}

impl Lane {
    /// Lanes of a pop's messages, in the order in which they were delivered.
    fn of(messages: Vec<Value>) -> Vec<Self> {
        let mut lanes: Vec<Self> = Vec::new();
        for message in messages {
            let text = |name: &str| message[name].as_str().expect(name).to_owned();
            if lanes.last().is_none_or(|lane| lane.id != message["partitionId"]) {
                let (id, name) = (text("partitionId"), text("partition"));
                let lease = text("leaseId");
                assert!(lanes.iter().all(|lane| lane.id != id), "a partition comes in one run");
                lanes.push(Self { id, name, lease, messages: Vec::new() });
            }
            lanes.last_mut().expect("a lane").messages.push(message);
        }
        lanes
    }

    fn numbers(&self) -> Vec<u64> {
        numbers_of(&self.messages)
    }

    /// An ok ack of the first `count` messages, as SDK runners send it (streams K13, K14).
    fn ack(&self, count: usize) -> Value {
        let last = count.saturating_sub(1).min(self.messages.len() - 1);
        json!({"transactionId": self.messages[last]["transactionId"], "leaseId": self.lease,
               "status": "completed", "count": count})
    }

    /// An ok ack of all messages.
    fn done(&self) -> Value {
        self.ack(self.messages.len())
    }
}

/// A server with the query `q` on the queue `in`, and a connection for the test's own SQL.
struct World {
    server: TestServer,
    client: Client,
    sql: tokio_postgres::Client,
    query: String,
}

impl World {
    async fn start() -> Self {
        Self::on(Arc::new(Database::new().await)).await
    }

    async fn on(database: Arc<Database>) -> Self {
        let server = TestServer::on(database).await;
        let client = server.client();
        let sql = server.database.sql().await;
        let query = client.register("q", "in").await;
        Self { server, client, sql, query }
    }

    /// Pushes `{"n": i}` to a partition of `in` and gives the partition's id.
    async fn feed(&self, partition: &str, range: std::ops::Range<usize>) -> String {
        self.client.push("in", partition, &numbers(range)).await;
        self.partition_id("in", partition).await
    }

    async fn partition_id(&self, queue: &str, partition: &str) -> String {
        let sql = "select lp.id::text from queen.log_partitions lp join queen.queues q
                   using (queue_no) where q.name = $1 and lp.name = $2";
        self.sql.query_one(sql, &[&queue, &partition]).await.expect("a partition").get(0)
    }

    /// Leases messages of a partition of `in` for a group. Waits a little: a refused call may hold
    /// its rows for a moment after its answer, and a pop skips what is locked.
    async fn lease(&self, partition: &str, group: &str, more: &str) -> Lane {
        let path = format!("in/partition/{partition}");
        let query =
            format!("consumerGroup={group}&subscriptionMode=all&wait=true&timeout=10000&{more}");
        let mut lanes = Lane::of(self.client.pop(&path, &query).await);
        assert_eq!(lanes.len(), 1, "messages of {partition} for {group}");
        lanes.remove(0)
    }

    /// Whether a group would get messages of a partition now; takes none away.
    async fn claimable(&self, partition: &str, group: &str) -> bool {
        let path = format!("in/partition/{partition}");
        let query = format!("consumerGroup={group}&subscriptionMode=all&batch=1&leaseSeconds=1");
        !self.client.pop(&path, &query).await.is_empty()
    }

    /// The body of a cycle of `q` on a partition, for the query's own group.
    fn body(&self, partition: &str, more: &Value) -> Value {
        let ids = json!({"query_id": self.query, "partition_id": partition,
                         "consumer_group": GROUP});
        with(ids, more)
    }

    /// A cycle that must commit.
    async fn commit(&self, partition: &str, more: &Value) -> Value {
        committed(self.client.cycle(&self.body(partition, more)).await)
    }

    /// A cycle that must be refused as an element, with these words.
    async fn refuse(&self, partition: &str, more: &Value, words: &str) -> Value {
        refused(self.client.cycle(&self.body(partition, more)).await, words)
    }

    /// State rows of `q` on a partition.
    async fn rows(&self, partition: &str) -> Vec<(String, Value)> {
        let body = json!({"query_id": self.query, "partition_id": partition});
        rows(&self.client.post(STATE, &body).await)
    }

    /// The cursor of a group as the store has it, without what differs between groups.
    async fn cursor(&self, partition: &str, group: &str) -> Value {
        let sql = "select to_jsonb(lc) - 'pid' - 'group_no' - 'last_consumed_at'
                   from queen.log_consumers lc join queen.log_groups lg using (group_no)
                   join queen.log_partitions lp using (pid)
                   where lp.id = $1::text::uuid and lg.name = $2";
        self.sql.query_one(sql, &[&partition, &group]).await.expect("a cursor").get(0)
    }

    /// A number that one row holds.
    async fn count(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.expect(sql).get(0)
    }

    /// Waits until at least `n` calls of the store wait for a row that somebody holds.
    async fn blocked(&self, n: i64) {
        let sql = "select count(*) from pg_stat_activity where datname = current_database()
                   and wait_event_type = 'Lock'";
        eventually("calls wait for a row", async || (self.count(sql).await >= n).then_some(()))
            .await;
    }

    /// Everything on a queue, read by a group of its own and settled for it.
    async fn all(&self, queue: &str) -> Vec<Value> {
        let group = uuid::Uuid::now_v7();
        let query = format!(
            "consumerGroup=peek.{group}&subscriptionMode=all&autoAck=true&batch=1000&partitions=64"
        );
        let mut all = Vec::new();
        loop {
            let some = self.client.pop(queue, &query).await;
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    /// Payloads on a queue.
    async fn payloads(&self, queue: &str) -> Vec<Value> {
        self.all(queue).await.into_iter().map(|mut m| m["data"].take()).collect()
    }

    async fn stop(self) {
        self.server.stop().await;
    }
}

/// A partition of a message queue that holds a row lock until it is dropped or committed.
async fn hold<'a>(
    sql: &'a mut tokio_postgres::Client,
    lock: &str,
) -> tokio_postgres::Transaction<'a> {
    let held = sql.transaction().await.expect("a transaction");
    let rows = held.query(lock, &[]).await.expect(lock);
    assert!(!rows.is_empty(), "nothing to hold: {lock}");
    held
}

/// The row of a partition, by its wire id.
fn partition_lock(id: &str) -> String {
    format!("select 1 from queen.log_partitions where id = '{id}' for update")
}

/// The row of the shard of `q` on a partition, by its wire id.
fn shard_lock(id: &str) -> String {
    format!("select 1 from foldmq.shards where partition_id = '{id}' for update")
}

/// Rows of a state answer; every row has its three keys.
fn rows(answer: &Answer) -> Vec<(String, Value)> {
    assert_eq!((answer.status, &answer.body["success"]), (200, &json!(true)), "{}", answer.text);
    let rows = answer.body["rows"].as_array().expect("rows");
    rows.iter()
        .map(|row| {
            assert_eq!(row.as_object().expect("a row").len(), 3, "{row}");
            assert!(row["updated_at"].is_string(), "{row}");
            (row["key"].as_str().expect("a key").to_owned(), row["value"].clone())
        })
        .collect()
}

#[track_caller]
fn committed(answer: Value) -> Value {
    assert_eq!(answer["success"], true, "{answer}");
    assert!(answer.get("error").is_none(), "{answer}");
    answer
}

/// The failure envelope: streams E7, E8, E9.
#[track_caller]
fn refused(answer: Value, words: &str) -> Value {
    let error = answer["error"].as_str().unwrap_or_else(|| panic!("no error: {answer}"));
    assert!(error.contains(words), "{answer}");
    assert_eq!(answer["success"], false, "{answer}");
    assert_eq!(answer["state_ops_applied"], 0, "{answer}");
    assert_eq!(answer["push_results"], json!([]), "{answer}");
    assert!(answer["ack_result"].is_null() && answer["queueName"].is_null(), "{answer}");
    assert!(answer["query_id"].is_string() && answer["partition_id"].is_string(), "{answer}");
    answer
}

/// Fails if PostgreSQL ever found a deadlock in a database; every server must have stopped, since a
/// connection reports its figures when it ends.
async fn no_deadlock(database: &Database) {
    let sql = database.sql().await;
    eventually("the connections of the servers have ended", async || {
        let others = "select count(*) from pg_stat_activity where datname = current_database()
                      and pid <> pg_backend_pid() and application_name = 'foldmq'";
        let row = sql.query_one(others, &[]).await.expect("the activity view");
        (row.get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    let row = sql.query_one(deadlocks, &[]).await.expect("the statistics");
    assert_eq!(row.get::<_, i64>(0), 0, "deadlocks that PostgreSQL had to break");
}
