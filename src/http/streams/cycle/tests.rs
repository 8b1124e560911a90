//! What the wire says, what the broker is told, and how the answer looks.

use jiff::Timestamp;
use uuid::Uuid;

use super::*;
use crate::types::cycle::{Cycle, Settled, Settlement, StateOp};
use crate::types::id::{DEFAULT_PARTITION, QUEUE_MODE, TenantId};

const IDS: &str = r#""query_id":"00000000-0000-0000-0000-000000000007",
    "partition_id":"00000000-0000-0000-0000-000000000008""#;
const LEASE: &str = "00000000-0000-7000-8000-000000000009";

fn element(rest: &str) -> Result<Cycle, String> {
    let body = format!("{{{IDS}{rest}}}");
    read(body.as_bytes(), TenantId::DEFAULT).expect("an element").cycle
}

fn cycle(rest: &str) -> Cycle {
    element(rest).unwrap_or_else(|reason| panic!("{rest}: {reason}"))
}

fn refused(rest: &str) -> String {
    element(rest).map(drop).expect_err(rest)
}

/// streams Y2, Y10, C7
#[test]
fn ids_must_be_there_and_are_judged_as_an_element() {
    for body in [
        "",
        "[]",
        "{",
        r#"{"query_id":"","partition_id":"x"}"#,
        r#"{"query_id":7,"partition_id":"x"}"#,
        r#"{"query_id":"x","partition_id":null}"#,
    ] {
        assert!(read(body.as_bytes(), TenantId::DEFAULT).is_err(), "{body}");
    }
    let body = r#"{"query_id":"x","partition_id":"00000000-0000-0000-0000-000000000008"}"#;
    let asked = read(body.as_bytes(), TenantId::DEFAULT).expect("an element");
    assert_eq!(asked.ids.query_text(), "");
    assert_eq!(asked.ids.partition_text(), "00000000-0000-0000-0000-000000000008");
    assert!(asked.cycle.is_err());
}

/// streams Y3, Y4, Y6, Y11
#[test]
fn absent_parts_are_empty() {
    for rest in [
        "",
        r#","state_ops":null,"push_items":null,"ack":null,"consumer_group":"""#,
        r#","push_items":"x","consumer_group":5,"release_lease":"no""#,
    ] {
        let cycle = cycle(rest);
        assert!(cycle.ops.is_empty() && cycle.emits.is_empty(), "{rest}");
        assert_eq!((cycle.group.as_str(), cycle.settlement), (QUEUE_MODE, Settlement::None));
    }
    assert!(refused(r#","state_ops":{}"#).contains("state_ops must be an array"));
    assert!(refused(r#","ack":"x""#).contains("ack must be an object"));
    assert!(refused(r#","consumer_group":"a\u0000""#).contains("consumer_group holds"));
}

/// streams O4, O5, O8
#[test]
fn state_ops_are_read_in_order_and_a_typo_refuses_the_cycle() {
    let ops = cycle(
        r#","state_ops":[{"type":"upsert","key":"a\u001f b","value":{"x":1.50}},
            {"type":"upsert","key":"b"},{"type":"upsert","key":"c","value":null},
            {"type":"delete","key":""}]"#,
    )
    .ops;
    let upsert = |key: &str, value: &str| StateOp::Upsert {
        key: key.to_owned(),
        value: value.to_owned(),
        due_ms: None,
    };
    let expected = [
        upsert("a\u{1f} b", r#"{"x":1.50}"#),
        upsert("b", "{}"),
        upsert("c", "null"),
        StateOp::Delete { key: String::new() },
    ];
    assert_eq!(ops, expected);
    let good = r#"{"type":"delete","key":"a"}"#;
    for bad in [
        r#"{"type":"Upsert","key":"a"}"#,
        r#"{"type":"set","key":"a"}"#,
        r#"{"key":"a"}"#,
        r#"{"type":null,"key":"a"}"#,
        r#"{"type":"upsert"}"#,
        r#"{"type":"upsert","key":null}"#,
        "5",
    ] {
        let reason = refused(&format!(r#","state_ops":[{good},{bad}]"#));
        assert!(reason.contains("state op 1:"), "{bad}: {reason}");
    }
}

/// streams P1-P6
#[test]
fn push_items_take_their_defaults() {
    let emits = cycle(
        r#","push_items":[
            {"queue":"q","payload":null,"data":1,"partition":""},
            {"queue":"q","data":{"b":1,"a":2},"partition":7,"messageId":"x","transactionId":""},
            {"queue":""},{"payload":1},{"queue":5},7,
            {"queue":"q","partition":"p","transactionId":"t",
             "messageId":"00000000-0000-0000-0000-000000000009"},
            {"queue":"q","traceId":"x"}]"#,
    )
    .emits;
    let payloads: Vec<_> = emits.iter().map(|emit| emit.payload.as_str()).collect();
    assert_eq!(payloads, ["null", r#"{"b":1,"a":2}"#, "{}", "{}"]);
    assert_eq!(emits[0].partition, DEFAULT_PARTITION);
    assert_eq!((&emits[1].message_id, &emits[1].transaction_id), (&None, &None));
    assert_eq!(emits[1].partition, DEFAULT_PARTITION);
    assert_eq!(emits[2].message_id, Some(Uuid::from_u128(9)));
    assert_eq!(emits[2].transaction_id.as_deref(), Some("t"));
    let reason = refused(r#","push_items":[{"queue":"q"},{"queue":"q","payload":"\ud800"}]"#);
    assert!(reason.contains("push_items[1].payload"), "{reason}");
    let reason = refused(r#","push_items":[{"queue":"q\u0000"}]"#);
    assert!(reason.contains("push_items[0].queue holds"), "{reason}");
}

/// streams A5, A6, A17 and the effect table
#[test]
fn the_ack_becomes_a_settlement() {
    let lease: Uuid = LEASE.parse().expect("a uuid");
    let settled = |ack: &str, rest: &str| {
        cycle(&format!(r#","ack":{{"leaseId":"{LEASE}"{ack}}}{rest}"#)).settlement
    };
    for status in ["", r#","status":null"#, r#","status":5"#, r#","status":"acked""#] {
        let got = settled(&format!(r#"{status},"count":50"#), "");
        assert_eq!(got, Settlement::Completed { lease, count: 50 }, "{status}");
    }
    for status in ["OK", "", "complete"] {
        let got =
            settled(&format!(r#","status":"{status}","count":5"#), r#","release_lease":false"#);
        assert_eq!(got, Settlement::Failed { lease, count: 5 }, "{status}");
    }
    let partial = |last: Option<&str>, count| Settlement::Partial {
        lease,
        count,
        last_transaction_id: last.map(str::to_owned),
        release: false,
    };
    let keep = r#","release_lease":false"#;
    assert_eq!(settled(r#","count":3,"transactionId":"t""#, keep), partial(Some("t"), 3));
    for count in ["-5", "1.5", "\"7\"", "null"] {
        assert_eq!(settled(&format!(r#","count":{count}"#), keep), partial(None, 0), "{count}");
    }
    for ack in ["{}", r#"{"leaseId":""}"#, r#"{"leaseId":"zz"}"#, r#"{"leaseId":9}"#] {
        let got = cycle(&format!(r#","ack":{ack}"#)).settlement;
        assert_eq!(got, Settlement::Completed { lease: Uuid::nil(), count: 0 }, "{ack}");
    }
}

fn receipt(stored: i64, settled: Option<Settled>) -> CycleReceipt {
    CycleReceipt {
        queue_name: "orders".to_owned(),
        ops_applied: 3,
        appends: vec![AppendReceipt {
            queue: "sink".to_owned(),
            partition: "Default".to_owned(),
            base_offset: 4711,
            stored,
            created_at: (stored > 0).then_some(Timestamp::UNIX_EPOCH),
        }],
        settled,
        version: 1,
        next_due_ms: None,
    }
}

fn ids() -> Ids {
    Ids { query: Some(Uuid::from_u128(1)), partition: Some(Uuid::from_u128(2)) }
}

/// streams E3-E6, P12
#[test]
fn a_committed_cycle_shows_what_it_did() {
    let settled = Settled { count: 50, released: true };
    let body = done(ids(), &receipt(1, Some(settled)));
    assert_eq!(
        body,
        json!({"success": true, "query_id": Uuid::from_u128(1),
            "partition_id": Uuid::from_u128(2), "queueName": "orders",
            "state_ops_applied": 3,
            "push_results": [{"queue": "sink", "partition": "Default", "status": "queued",
                "baseOffset": 4711, "createdAt": "1970-01-01T00:00:00.000000Z"}],
            "ack_result": {"success": true, "count": 50, "lease_released": true,
                "dlq": false}})
    );
    let body = done(ids(), &receipt(0, None));
    assert_eq!(body["push_results"][0]["status"], "duplicate");
    assert_eq!(body["ack_result"], Value::Null);
    assert!(body.get("error").is_none());
}

/// streams C11, E7-E9, Y10
#[test]
fn a_refused_cycle_has_the_same_envelope() {
    let body = failed(Ids { query: None, ..ids() }, "query not found");
    assert_eq!(
        body,
        json!({"success": false, "query_id": "", "partition_id": Uuid::from_u128(2),
            "queueName": null, "state_ops_applied": 0, "push_results": [],
            "ack_result": null, "error": "query not found"})
    );
}
