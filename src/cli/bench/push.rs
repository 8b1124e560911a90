//! Appends: segments straight into PostgreSQL, and the same messages over `/push`.

use std::sync::Arc;

use anyhow::ensure;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::load::{self, Feed};
use super::measure::{Driver, Pace, Pair, duel};
use super::stage::{CONNECTIONS, Stage, Target};
use super::wire::Wire;
use crate::log::Segment;

/// The allocator that every append of the broker goes through.
const PUSH_ONE: &str =
    "select status, base_offset from queen.log_push_one_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)";

/// One connection that stores prepared segments, each in a transaction of its own.
struct Direct {
    client: Client,
    statement: Statement,
    segments: Arc<Vec<Segment>>,
    /// Partition and segments stored there.
    lanes: Vec<(i64, usize)>,
    at: usize,
}

impl Driver for Direct {
    async fn step(&mut self) -> anyhow::Result<u64> {
        self.at = (self.at + 1) % self.lanes.len();
        let (pid, stored) = &mut self.lanes[self.at];
        let segment = &self.segments[*stored % self.segments.len()];
        *stored += 1;
        // Ids that grow, as the broker's do; those in the frames are never looked at.
        let (first, last) = (Uuid::now_v7(), Uuid::now_v7());
        let last = if segment.n == 1 { first } else { last };
        let row = self
            .client
            .query_one(
                &self.statement,
                &[
                    &*pid,
                    &segment.n,
                    &segment.raw_bytes,
                    &first,
                    &last,
                    &segment.hashes,
                    &segment.payload,
                    &None::<i64>,
                    &0_i64,
                ],
            )
            .await?;
        ensure!(row.get::<_, &str>("status") == "queued", "a segment was not stored");
        Ok(u64::from(segment.n.unsigned_abs()))
    }
}

/// One HTTP connection that pushes to a partition of its own.
struct Http {
    wire: Wire,
    queue: String,
    lane: String,
    batch: usize,
    payloads: Arc<Vec<String>>,
    at: usize,
    seed: u64,
    body: Vec<u8>,
}

impl Driver for Http {
    async fn step(&mut self) -> anyhow::Result<u64> {
        let (at, seed, n) = (self.at, self.seed, self.batch);
        let items = (at..at + n).map(|i| {
            let id = Uuid::from_u64_pair(seed, i as u64).to_string();
            (id, self.payloads[i % self.payloads.len()].as_str())
        });
        load::push_body(&mut self.body, &self.queue, &self.lane, items);
        self.at += n;
        let answer = self.wire.call("POST", "/api/v1/push", &self.body).await?;
        load::all_queued(answer.expect(201)?, n)?;
        Ok(n as u64)
    }
}

/// A queue that the direct driver filled, and the segments that it repeated there.
pub(super) struct Filled {
    pub(super) target: Target,
    pub(super) segments: Arc<Vec<Segment>>,
}

/// Messages a second at one batch size.
pub(super) async fn compare(
    stage: &Stage,
    feed: &Feed,
    pace: Pace,
    batch: usize,
) -> anyhow::Result<(Pair, Filled)> {
    let target = stage.queue(&format!("push{batch}.direct"), super::stage::LANES).await?;
    let segments = feed.segments(batch);
    let mut direct = Vec::new();
    for driver in 0..stage.pool_size() {
        let client = stage.client().await?;
        direct.push(Direct {
            statement: client.prepare(PUSH_ONE).await?,
            client,
            segments: Arc::clone(&segments),
            lanes: target
                .share(driver, stage.pool_size())
                .iter()
                .map(|(_, id)| (id.pid().0, 0))
                .collect(),
            at: 0,
        });
    }
    direct.retain(|driver| !driver.lanes.is_empty());
    let over = stage.queue(&format!("push{batch}.http"), super::stage::LANES).await?;
    let mut http = Vec::new();
    for (i, wire) in stage.wires(CONNECTIONS).await?.into_iter().enumerate() {
        http.push(Http {
            wire,
            queue: over.queue.name.clone(),
            lane: over.lanes[i % over.lanes.len()].0.clone(),
            batch,
            payloads: Arc::clone(&feed.payloads),
            at: 0,
            seed: rand::random(),
            body: Vec::new(),
        });
    }
    Ok((duel(pace, direct, http).await?, Filled { target, segments }))
}

/// One HTTP connection that pushes a part of the feed, 100 messages a request.
struct Filler {
    wire: Wire,
    queue: String,
    lane: String,
    items: Vec<(String, String)>,
    at: usize,
    body: Vec<u8>,
}

impl Driver for Filler {
    async fn step(&mut self) -> anyhow::Result<u64> {
        let end = (self.at + 100).min(self.items.len());
        let chunk = &self.items[self.at..end];
        self.at = end;
        if chunk.is_empty() {
            return Ok(0);
        }
        let items = chunk.iter().map(|(id, payload)| (id, payload.as_str()));
        load::push_body(&mut self.body, &self.queue, &self.lane, items);
        let answer = self.wire.call("POST", "/api/v1/push", &self.body).await?;
        load::all_queued(answer.expect(201)?, chunk.len())?;
        Ok(chunk.len() as u64)
    }
}

/// Pushes the first `n` departures to every lane of a queue, each lane in order.
pub(super) async fn fill(
    stage: &Stage,
    feed: &Feed,
    target: &Target,
    n: usize,
) -> anyhow::Result<()> {
    let mut fillers = Vec::new();
    for (lane, _) in &target.lanes {
        fillers.push(Filler {
            wire: stage.wire().await?,
            queue: target.queue.name.clone(),
            lane: lane.clone(),
            items: feed.lane(lane, n),
            at: 0,
            body: Vec::new(),
        });
    }
    super::measure::window(fillers, std::time::Duration::from_secs(120)).await?;
    Ok(())
}
