//! A lease is one consumer's, however many ask at however many brokers.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::Brokers;
use crate::support::{PATIENCE, tell};

const CONSUMERS: usize = 64;
const MESSAGES: usize = 600;

#[derive(Default)]
struct Seen {
    /// The lease that is held, as its holder knows it.
    held: Option<String>,
    /// Deliveries by number, which is the order in the partition.
    times: BTreeMap<u64, usize>,
    last: Option<u64>,
}

/// FB-48: 64 consumers at three brokers ask for one partition and group while messages come in:
/// never two live leases, each message delivered once, in order.
#[tokio::test(flavor = "multi_thread")]
async fn one_partition_and_group_has_one_live_lease() {
    let brokers = Brokers::start(3).await;
    let seen = Mutex::new(Seen::default());
    let done = AtomicBool::new(false);
    let started = Instant::now();
    let consume = |i: usize| {
        let (brokers, seen, done) = (&brokers, &seen, &done);
        async move {
            let client = brokers.client(i);
            let place = if i.is_multiple_of(2) { "q" } else { "q/partition/p" };
            let pop = format!(
                "/api/v1/pop/queue/{place}?batch=3&wait=true&timeout=1000&leaseSeconds=60\
                 &consumerGroup=g&subscriptionMode=all"
            );
            while !done.load(Ordering::SeqCst) {
                assert!(started.elapsed() < 2 * PATIENCE, "not all messages come");
                let answer = client.get(&pop).await;
                if answer.status == 204 {
                    continue;
                }
                let messages = answer.expect(200)["messages"].as_array().expect("a list").clone();
                take(&mut seen.lock().expect("no panic"), &messages);
                tokio::time::sleep(Duration::from_millis(2)).await;
                let acks: Vec<Value> = messages
                    .iter()
                    .map(|m| {
                        json!({"transactionId": m["transactionId"], "status": "completed",
                               "partitionId": m["partitionId"], "leaseId": m["leaseId"]})
                    })
                    .collect();
                let body = json!({"consumerGroup": "g", "acknowledgments": acks});
                let all = {
                    let mut seen = seen.lock().expect("no panic");
                    seen.held = None;
                    seen.times.len() == MESSAGES
                };
                // At another broker than the pop's.
                let acked = brokers.client(i + 1).post("/api/v1/ack/batch", &body).await;
                for entry in acked.expect(200).as_array().expect("a list") {
                    assert_eq!(entry["success"], true, "{entry}");
                }
                if all {
                    done.store(true, Ordering::SeqCst);
                }
            }
        }
    };
    let produce = async {
        for n in 0..MESSAGES {
            brokers.client(n).push("q", "p", &[json!(n)]).await;
        }
    };
    tokio::join!(join_all((0..CONSUMERS).map(consume)), produce);
    tell(&format!("{MESSAGES} messages in {:?}", started.elapsed()));
    let seen = seen.into_inner().expect("no panic");
    assert!(seen.times.values().all(|times| *times == 1), "delivered twice: {:?}", seen.times);
    assert_eq!(seen.times.len(), MESSAGES);
    brokers.stop().await;
}

fn take(seen: &mut Seen, messages: &[Value]) {
    let lease = messages[0]["leaseId"].as_str().expect("a lease").to_owned();
    assert_eq!(seen.held, None, "{lease} is live beside it");
    seen.held = Some(lease);
    for message in messages {
        let n = message["data"].as_u64().expect("a number");
        assert!(seen.last.is_none_or(|last| last < n), "{n} after {:?}", seen.last);
        seen.last = Some(n);
        *seen.times.entry(n).or_default() += 1;
    }
}
