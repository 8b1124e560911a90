//! Failed, retry and dlq acks: what comes again, what it costs, and what is given up.

use serde_json::{Value, json};

use super::{
    ack, ack_all, ack_body, ack_of, all, check_entry, check_refused, configure, fill, keys, number,
    push,
};
use crate::support::{Client, TestServer};

const BACK: [bool; 4] = [true, true, false, false];
const DEAD: [bool; 4] = [true, true, true, false];
const PARTLY: [bool; 4] = [true, false, false, false];
const CHARGED: &str = "select max(retry_count)::bigint from queen.log_consumers";
const DEAD_N: &str = "select count(*) from queen.log_dead_letters";

fn with_reason(mut ack: Value, reason: &str) -> Value {
    ack["error"] = json!(reason);
    ack
}

/// data 92, data 93, data 97, data 98, data 101: a failed ack gives the message and what follows
/// back at once, and charges the lane once a call; the end of a batch clears the charge.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_ack_gives_the_rest_back_at_once() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"retryLimit": 9, "retryDelay": 600_000})).await;
    fill(&client, "q", "p", &["a", "b", "c", "d"]).await;
    let held = client.pop("q", "").await;
    check_entry(&ack(&client, &held[2], "failed").await, BACK);
    assert_eq!(number(&server, CHARGED).await, 1);

    let held = client.pop("q", "").await;
    assert_eq!(keys(&held), ["a", "b", "c", "d"], "nothing was completed before it");
    assert_eq!(all(&held, "deliveryAttempt"), [2; 4]);
    check_entry(&ack(&client, &held[1], "completed").await, PARTLY);
    assert_eq!(number(&server, CHARGED).await, 1, "a partial ack changes no charge");
    let nacks: Vec<Value> = held[2..].iter().map(|m| ack_of(m, "failed")).collect();
    for entry in ack_all(&client, &nacks).await {
        check_entry(&entry, BACK);
    }
    assert_eq!(number(&server, CHARGED).await, 2, "two nacks of one call");

    let held = client.pop("q", "").await;
    assert_eq!(keys(&held), ["c", "d"]);
    assert_eq!(all(&held, "deliveryAttempt"), [1; 2], "another place");
    check_entry(&ack(&client, &held[1], "completed").await, BACK);
    assert_eq!(number(&server, CHARGED).await, 0);
    assert!(client.pop("q", "").await.is_empty());
    server.stop().await;
}

/// data 94, data 95, data 96, data 97: in one call the lowest signal decides: completed items below
/// it count, those above it come again; a retry costs nothing, however often.
#[tokio::test(flavor = "multi_thread")]
async fn the_lowest_signal_of_a_call_decides() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"retryLimit": 1})).await;
    fill(&client, "q", "p", &["a", "b", "c", "d", "e"]).await;
    let call = async |words: &[&str]| {
        let held = client.pop("q", "").await;
        let acks: Vec<Value> = held.iter().zip(words).map(|(m, word)| ack_of(m, word)).collect();
        for entry in ack_all(&client, &acks).await {
            check_entry(&entry, BACK);
        }
    };
    call(&["completed", "failed", "completed", "failed", "completed"]).await;
    assert_eq!(number(&server, CHARGED).await, 1);
    call(&["completed", "retry", "completed", "failed"]).await;
    assert_eq!(number(&server, CHARGED).await, 1, "the failed one stands above the retry");
    for attempt in 1..=8 {
        let held = client.pop("q", "").await;
        assert_eq!(keys(&held), ["c", "d", "e"]);
        assert_eq!(held[0]["deliveryAttempt"], attempt);
        check_entry(&ack(&client, &held[0], "retry").await, BACK);
    }
    assert_eq!(number(&server, CHARGED).await, 1);
    // Of several words for one message dlq comes before failed, and failed before retry.
    let held = client.pop("q", "").await;
    let acks = ["retry", "dlq", "failed"].map(|word| with_reason(ack_of(&held[0], word), word));
    for entry in ack_all(&client, &acks).await {
        check_entry(&entry, DEAD);
    }
    assert_eq!(number(&server, CHARGED).await, 0, "cleared by the dead letter");
    let held = client.pop("q", "").await;
    assert_eq!(keys(&held), ["d", "e"]);
    for entry in ack_all(&client, &["retry", "failed"].map(|w| ack_of(&held[0], w))).await {
        check_entry(&entry, BACK);
    }
    assert_eq!(number(&server, CHARGED).await, 1);
    assert_eq!(number(&server, DEAD_N).await, 1);
    server.stop().await;
}

/// Nacks the first message of a queue until another one is first; gives how often, and the last
/// entry.
async fn nack_until_given_up(client: &Client, queue: &str) -> (usize, Value) {
    let mut held = client.pop(queue, "").await;
    let poison = held[0]["id"].clone();
    for n in 1..20 {
        let entry = ack(client, &held[0], "failed").await;
        held = client.pop(queue, "").await;
        if held[0]["id"] != poison {
            return (n, entry);
        }
        check_entry(&entry, BACK);
    }
    panic!("{queue}: never given up");
}

/// data 99, data 100, data 103, data 106, data 107: `retryLimit` nacks give a message back, the
/// next one gives it up: as a dead letter, or without a trace if both options say so.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_given_up_after_its_retries() {
    let server = TestServer::start().await;
    let client = server.client();
    for (queue, options, nacks) in [
        ("unconfigured", None, 4),
        ("one", Some(json!({"retryLimit": 1})), 2),
        ("none", Some(json!({"retryLimit": 0})), 1),
        ("no-queue", Some(json!({"retryLimit": 1, "deadLetterQueue": false})), 2),
        ("no-max", Some(json!({"retryLimit": 1, "dlqAfterMaxRetries": false})), 2),
    ] {
        if let Some(options) = options {
            configure(&client, queue, options).await;
        }
        fill(&client, queue, "p", &["a", "b"]).await;
        let before = number(&server, DEAD_N).await;
        let (n, entry) = nack_until_given_up(&client, queue).await;
        check_entry(&entry, DEAD);
        assert_eq!(n, nacks, "{queue}");
        assert_eq!(number(&server, DEAD_N).await, before + 1, "{queue}");
    }
    let off = json!({"retryLimit": 2, "deadLetterQueue": false, "dlqAfterMaxRetries": false});
    configure(&client, "drop", off).await;
    fill(&client, "drop", "p", &["a", "b"]).await;
    let before = number(&server, DEAD_N).await;
    let (n, entry) = nack_until_given_up(&client, "drop").await;
    check_entry(&entry, BACK);
    assert_eq!(n, 3);
    assert_eq!(number(&server, DEAD_N).await, before, "no record");
    let charged = "select max(c.retry_count)::bigint from queen.log_consumers c
                     join queen.log_partitions p using (pid) join queen.queues q using (queue_no)
                    where q.name = 'drop'";
    assert_eq!(number(&server, charged).await, 0, "the next message starts with a full budget");
    server.stop().await;
}

/// data 102, data 103, data 104, data 105: a dlq ack gives a message up at once for its group; the
/// record keeps everything about it, with the reason of the nack.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_keeps_everything() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"retryLimit": 1})).await;
    let body = r#"{"items":[
        {"queue":"q","partition":"p","transactionId":"a","payload":{"z":1.0, "a":"\u0000"}},
        {"queue":"q","partition":"p","transactionId":"b","payload":"b"},
        {"queue":"q","partition":"p","transactionId":"c","payload":"c"},
        {"queue":"q","partition":"p","transactionId":"d","payload":"d"}]}"#;
    let pushed = client.post_text("/api/v1/push", body.to_owned()).await.expect(201);
    let query = "consumerGroup=g&subscriptionMode=all";

    let held = client.pop("q", query).await;
    let partition = held[0]["partitionId"].as_str().expect("text").to_owned();
    let dlq = with_reason(ack_of(&held[0], "dlq"), "bad \u{0} zone \u{1F388}");
    check_entry(&ack_body(&client, &dlq).await, DEAD);
    // The second one by its retries; the reason may stand at another item of the call.
    let held = client.pop("q", query).await;
    assert_eq!(keys(&held), ["b", "c", "d"]);
    check_entry(&ack(&client, &held[0], "failed").await, BACK);
    let held = client.pop("q", query).await;
    let mut acks = vec![ack_of(&held[0], "failed"), ack_of(&held[1], "failed")];
    acks[1]["error"] = json!("given for c");
    let entries = ack_all(&client, &acks).await;
    check_entry(&entries[0], DEAD);
    check_entry(&entries[1], BACK);
    // The third one without any reason.
    let held = client.pop("q", query).await;
    check_entry(&ack(&client, &held[0], "dlq").await, DEAD);
    assert_eq!(keys(&client.pop("q", query).await), ["d"]);

    let sql = server.database.sql().await;
    let rows = sql
        .query(
            "select d.transaction_id, d.message_id, q.name, p.name, p.id, d.group_name,
                    d.retry_count, d.error_message, convert_from(d.payload, 'utf8'),
                    d.first_offset, d.failed_at >= d.created_at
               from queen.log_dead_letters d
               join queen.queues q using (queue_no) join queen.log_partitions p using (pid)
              order by d.first_offset",
            &[],
        )
        .await
        .expect("the dead letters");
    let payloads = [r#"{"z":1.0, "a":"\u0000"}"#, "\"b\"", "\"c\""];
    let reasons = ["bad \u{fffd} zone \u{1F388}", "given for c", "no reason given"];
    assert_eq!(rows.len(), 3);
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(row.get::<_, String>(0), ["a", "b", "c"][i]);
        assert_eq!(row.get::<_, uuid::Uuid>(1).to_string(), pushed[i]["message_id"]);
        assert_eq!((row.get::<_, String>(2), row.get::<_, String>(3)), ("q".into(), "p".into()));
        assert_eq!(row.get::<_, uuid::Uuid>(4).to_string(), partition);
        assert_eq!(row.get::<_, String>(5), "g");
        assert_eq!(row.get::<_, i32>(6), [0, 1, 0][i]);
        assert_eq!(row.get::<_, String>(7), reasons[i]);
        assert_eq!(row.get::<_, String>(8), payloads[i]);
        assert_eq!((row.get::<_, i64>(9), row.get::<_, bool>(10)), ([0, 1, 2][i], true));
    }
    let other = client.pop("q", "consumerGroup=h&subscriptionMode=all").await;
    assert_eq!(keys(&other), ["a", "b", "c", "d"], "another group has all of them");
    server.stop().await;
}

/// data 108: what is committed cannot be nacked, with or without a lease; without any batch there
/// is nothing to nack either.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_cannot_be_nacked() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a", "b", "c"]).await;
    let held = client.pop("q", "").await;
    check_entry(&ack(&client, &held[1], "completed").await, PARTLY);
    for word in ["failed", "retry", "dlq", "whatever"] {
        for message in &held[..2] {
            let mut nack = ack_of(message, word);
            check_refused(&ack_body(&client, &nack).await, "committed");
            nack["leaseId"] = Value::Null;
            check_refused(&ack_body(&client, &nack).await, "committed");
        }
    }
    assert!(client.pop("q", "").await.is_empty(), "the lease lives");
    check_entry(&ack(&client, &held[2], "retry").await, BACK);
    for word in ["failed", "retry"] {
        let mut nack = ack_of(&held[2], word);
        nack["leaseId"] = Value::Null;
        check_refused(&ack_body(&client, &nack).await, "no outstanding batch");
    }
    assert_eq!(number(&server, CHARGED).await, 0);
    assert_eq!(number(&server, DEAD_N).await, 0);
    assert_eq!(keys(&client.pop("q", "").await), ["c"]);
    server.stop().await;
}

/// data 109: a word that is not known counts as failed, no word as completed.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_words_are_failures() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"retryLimit": 100})).await;
    fill(&client, "q", "p", &["0", "1", "2", "3", "4", "5", "6"]).await;
    let words = [json!(""), json!("COMPLETED"), json!("nack"), json!("Ok"), json!(5), json!({})];
    for (charged, word) in (1..).zip(words) {
        let held = client.pop("q", "batch=1").await;
        let mut ack = ack_of(&held[0], "");
        ack["status"] = word;
        check_entry(&ack_body(&client, &ack).await, BACK);
        assert_eq!(keys(&held), ["0"], "{ack}");
        assert_eq!(number(&server, CHARGED).await, charged, "{ack}");
    }
    let words = [Value::Null, json!("completed"), json!("success"), json!("acked"), json!("ok")];
    for (i, word) in words.into_iter().enumerate() {
        let held = client.pop("q", "batch=1").await;
        assert_eq!(keys(&held), [i.to_string()]);
        let mut ack = ack_of(&held[0], "");
        ack["status"] = word;
        check_entry(&ack_body(&client, &ack).await, BACK);
    }
    let held = client.pop("q", "batch=1").await;
    let mut ack = ack_of(&held[0], "");
    ack.as_object_mut().expect("an object").remove("status");
    check_entry(&ack_body(&client, &ack).await, BACK);
    assert_eq!(keys(&client.pop("q", "").await), ["6"]);
    server.stop().await;
}

/// data 110: one poison message costs its neighbours nothing: a loop that ends its batch at a nack
/// handles each of them once.
#[tokio::test(flavor = "multi_thread")]
async fn a_poison_message_costs_its_neighbours_nothing() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"retryLimit": 1})).await;
    let items = ["a", "b", "poison", "d", "e"].map(|key| super::item("q", "p", key));
    push(&client, &items).await;
    let mut handled = Vec::new();
    let mut nacks = Vec::new();
    loop {
        let held = client.pop("q", "batch=5").await;
        if held.is_empty() {
            break;
        }
        for message in &held {
            if message["data"] == "poison" {
                nacks.push(ack(&client, message, "failed").await["dlq"].clone());
                break;
            }
            handled.push(message["data"].clone());
            let entry = ack(&client, message, "completed").await;
            assert_eq!(entry["success"], true, "{entry}");
        }
    }
    assert_eq!(handled, ["a", "b", "d", "e"]);
    assert_eq!(nacks, [false, true]);
    server.stop().await;
}
