//! Clients that go away while they wait.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rand::Rng;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::{Brokers, parked};
use crate::support::{seeded, tell};

const ROUNDS: usize = 300;
const LEASE: Duration = Duration::from_secs(3);
/// How soon a lease of a request that is gone has come back, by far.
const SOON: Duration = Duration::from_secs(1);
/// Rounds in which the answer was on its way when the client left: nobody can tell then.
const UNDECIDED_MAX: usize = ROUNDS / 10;

/// A long poll on a connection of its own, which ends with the value.
struct Poll(TcpStream);

impl Poll {
    async fn ask(addr: SocketAddr, path: &str) -> Self {
        let mut stream = TcpStream::connect(addr).await.expect("the broker listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the broker reads");
        Self(stream)
    }

    /// Waits for an answer.
    async fn answered(&self) {
        self.0.readable().await.expect("an open connection");
    }

    /// Goes away, unless an answer is there.
    async fn leave(mut self) -> Option<Value> {
        let mut answer = vec![0; 1];
        // Asks the system, whatever the runtime knows so far.
        self.0.try_read(&mut answer).ok().filter(|n| *n > 0)?;
        self.0.read_to_end(&mut answer).await.expect("the whole answer");
        let text = String::from_utf8(answer).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        Some(serde_json::from_str(body).expect("JSON"))
    }
}

/// FB-90: a waiting pop is aborted in the very moment of a push, at one broker or another: each
/// message is delivered, and the lease of a dead request comes back at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_poll_gives_back_what_it_claimed() {
    let mut random = seeded();
    let brokers = Brokers::start(2).await;
    let pop = format!(
        "/api/v1/pop/queue/q?wait=true&timeout=20000&leaseSeconds={}&consumerGroup=g\
         &subscriptionMode=all",
        LEASE.as_secs()
    );
    let (mut taken, mut undecided) = (0, 0);
    for n in 0..ROUNDS {
        let at = random.random_range(0..2);
        let (asking, pushing) = (brokers.client(at), brokers.client(n));
        let doomed = Poll::ask(brokers.servers[at].server.addr(), &pop).await;
        parked(asking, "q", 1).await;
        let pushed = Notify::new();
        let push = async {
            pushed.notify_one();
            pushing.push("q", "p", &[json!(n)]).await;
        };
        // A push takes some milliseconds; the poll dies before it commits, meanwhile, or after.
        let wait = Duration::from_micros(random.random_range(0..12_000));
        let dies = async {
            pushed.notified().await;
            tokio::select! {
                () = doomed.answered() => {}
                () = tokio::time::sleep(wait) => {}
            }
            let answer = doomed.leave().await;
            (answer, Timestamp::now())
        };
        let ((answer, left), ()) = tokio::join!(dies, push);
        taken += usize::from(answer.is_some());
        let answer = match answer {
            Some(answer) => answer,
            None => {
                let asked = Instant::now();
                let other = brokers.client(random.random_range(0..2));
                let answer = other.get(&pop).await.expect(200);
                let created = answer["messages"][0]["createdAt"].as_str().expect("text");
                let late = asked.elapsed() > SOON;
                let before = left < created.parse().expect("an instant");
                assert!(!(late && before), "left at {left}, before the push: {answer}");
                undecided += usize::from(late);
                answer
            }
        };
        let messages = answer["messages"].as_array().expect("messages");
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert_eq!(messages[0]["data"], n, "{messages:?}");
        let ack = json!({"transactionId": messages[0]["transactionId"], "status": "completed",
            "partitionId": messages[0]["partitionId"], "leaseId": messages[0]["leaseId"],
            "consumerGroup": "g"});
        let acked = asking.post("/api/v1/ack", &ack).await.expect(200);
        assert_eq!(acked[0]["success"], true, "{acked}");
    }
    tell(&format!("{ROUNDS} rounds: {taken} answered, {undecided} delivered after the lease"));
    assert!(taken < ROUNDS * 9 / 10, "polls were aborted");
    assert!(undecided <= UNDECIDED_MAX, "{undecided} leases of dead requests were kept");
    brokers.stop().await;
}
