//! Plays a schedule against brokers, and looks at everything after every step.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::generate::{self, Delivery, Plan, Pop, Stage, Step};
use super::model::{Model, Place, QUERY, Run};
use super::request::{Expected, Request};
use super::wire::{Names, Verdict, same};
use super::world::{Sql, Stats, World};
use crate::support::{Answer, Client, TestServer};

/// Until when a lease lives, Unix µs, by lane and group.
pub(super) type Ends = BTreeMap<(usize, usize), (String, i64)>;

/// One schedule under way.
pub(super) struct Driver<'a> {
    pub(super) seed: u64,
    pub(super) plan: Plan,
    pub(super) model: Model,
    pub(super) names: Names,
    pub(super) sql: &'a Sql,
    pub(super) clients: [Client; 2],
    /// The broker that this schedule may stop.
    pub(super) own: Option<TestServer>,
    pub(super) world: &'a World,
    pub(super) ends: Ends,
    pub(super) played: Vec<String>,
    pub(super) stats: Stats,
}

impl<'a> Driver<'a> {
    pub(super) async fn new(world: &'a World, sql: &'a Sql, seed: u64, name: &str) -> Self {
        let plan = Plan::of(seed);
        let mut clients = world.clients.clone();
        let mut own = None;
        if plan.stage == Stage::Restarting {
            let server = world.another().await;
            clients[0] = server.client();
            own = Some(server);
        }
        let mut names = Names::new(name);
        let options = json!({"retryLimit": plan.settings.retry_limit,
            "deadLetterQueue": plan.settings.dead_letter,
            "dlqAfterMaxRetries": plan.settings.dead_letter});
        let body = json!({"queue": names.queues[0], "options": options});
        clients[0].post("/api/v1/configure", &body).await.expect(200);
        let query = names.groups[QUERY].trim_start_matches("streams.").to_owned();
        names.query = clients[0].register(&query, &names.queues[0]).await;
        Self {
            seed,
            plan,
            model: Model::new(plan.settings),
            names,
            sql,
            clients,
            own,
            world,
            ends: Ends::new(),
            played: vec![format!("{plan:?}")],
            stats: Stats::default(),
        }
    }

    /// Plays every step, settles what is left, and reads everything back.
    pub(super) async fn play(&mut self) -> Verdict {
        self.stats.count(&format!("{:?}", self.plan.stage));
        for at in 0..self.plan.steps {
            let step = generate::step(self.seed, at, self.plan, &self.model);
            self.step(step).await?;
        }
        let mut at = self.plan.steps;
        while let Some(step) = generate::closing(&self.model, at, self.plan) {
            self.step(step).await?;
            at += 1;
        }
        self.read_back().await?;
        if let Some(server) = self.own.take() {
            server.stop().await;
        }
        Ok(())
    }

    async fn step(&mut self, step: Step) -> Verdict {
        self.played.push(format!("{step:?}"));
        let before = self.model.clone();
        let mut touched = None;
        match step {
            Step::Call(request, delivery, hosts) => {
                if let Request::Cycle(cycle) = &request {
                    touched = Some(cycle.lane);
                }
                self.call(&request, delivery, hosts).await?;
            }
            Step::Pop(pop, host) => self.pop(&pop, host).await?,
            Step::Expire { lane, group } => self.expire(lane, group).await,
            Step::Restart => self.restart().await,
        }
        self.model.audit(&before);
        self.look().await?;
        match touched {
            Some(lane) => self.look_at_state(lane).await,
            None => Ok(()),
        }
    }

    async fn call(&mut self, request: &Request, mode: Delivery, hosts: [usize; 2]) -> Verdict {
        let mut once = self.model.clone();
        let first = once.apply(request);
        let mut twice = once.clone();
        let second = twice.apply(request);
        let lost = matches!(mode, Delivery::Lost(_));
        // What may take effect twice is never left in flight.
        let unsafe_to_lose = lost && (!request.guarded() || once != twice);
        let mode = if unsafe_to_lose { Delivery::Twice } else { mode };
        self.stats.request(request, &first, mode);
        let (path, body) = self.names.request(&self.model, request);
        let clients = hosts.map(|host| self.clients[host].clone());
        match mode {
            Delivery::Once => {
                let a = send(&clients[0], &path, &body).await?;
                self.model = once;
                self.each(&a, &[&first])?;
            }
            Delivery::Twice => {
                let a = send(&clients[0], &path, &body).await?;
                let b = send(&clients[1], &path, &body).await?;
                self.model = twice;
                self.each(&a, &[&first])?;
                self.each(&b, &[&second])?;
            }
            Delivery::Together => {
                let (a, b) = tokio::try_join!(
                    send(&clients[0], &path, &body),
                    send(&clients[1], &path, &body)
                )?;
                self.model = twice;
                self.model.blur();
                self.pairs(&a, &b, &first, &second)?;
            }
            Delivery::Lost(after) => {
                let sent = send(&clients[0], &path, &body);
                let answer = tokio::time::timeout(Duration::from_micros(after), sent).await;
                let a = send(&clients[1], &path, &body).await?;
                self.model = once;
                self.model.blur();
                self.each(&a, &[&first, &second])?;
                if first != second {
                    let again = self.each(&a, &[&second]).is_ok();
                    let what = ["lost before it took effect", "lost after it took effect"];
                    self.stats.count(what[usize::from(again || answer.is_ok())]);
                }
            }
        }
        Ok(())
    }

    /// Every entry is one of those that it may be.
    fn each(&mut self, found: &[Value], allowed: &[&Vec<Expected>]) -> Verdict {
        same("entries", &json!(found.len()), &json!(allowed[0].len()))?;
        for (index, entry) in found.iter().enumerate() {
            let mut verdicts = Vec::new();
            for expected in allowed {
                let verdict = self.names.judge(&self.model, index, entry, &expected[index]);
                verdicts.extend(verdict.err());
            }
            if verdicts.len() == allowed.len() {
                return Err(verdicts.join("; or "));
            }
        }
        Ok(())
    }

    /// Two answers to one request: one is the first, the other the second, whichever came first.
    fn pairs(
        &mut self,
        a: &[Value],
        b: &[Value],
        first: &[Expected],
        second: &[Expected],
    ) -> Verdict {
        same("entries", &json!([a.len(), b.len()]), &json!([first.len(), first.len()]))?;
        for (index, (first, second)) in first.iter().zip(second).enumerate() {
            let known = self.names.ids.clone();
            let mut judge = |a: &Value, b: &Value| {
                self.names.ids.clone_from(&known);
                let judged = self.names.judge(&self.model, index, a, first);
                judged.and_then(|()| self.names.judge(&self.model, index, b, second))
            };
            if let Err(one) = judge(&a[index], &b[index])
                && let Err(other) = judge(&b[index], &a[index])
            {
                return Err(format!("of two at once: {one}; or {other}"));
            }
        }
        Ok(())
    }

    async fn pop(&mut self, pop: &Pop, host: usize) -> Verdict {
        let path = self.names.pop(pop);
        let answer = self.clients[host].get(&path).await;
        let lease = answer.body["leaseId"].as_str().unwrap_or_default().to_owned();
        let lease = (!pop.auto_ack).then_some(lease.as_str());
        let runs = match pop.lane {
            Some(lane) => {
                let run = self.model.claim((lane, pop.group), pop.batch, lease);
                run.into_iter().collect()
            }
            None => self.wildcard(pop, &answer, lease)?,
        };
        self.stats.pop(pop, &runs);
        if let (true, Some(lease)) = (pop.lost, lease) {
            self.model.lose(lease);
        }
        self.names.judge_pop(&self.model, pop, &answer, &runs)
    }

    /// The broker chooses the lanes; what comes of each, and what may be left, is determined.
    fn wildcard(
        &mut self,
        pop: &Pop,
        answer: &Answer,
        lease: Option<&str>,
    ) -> Result<Vec<Run>, String> {
        let before = self.model.clone();
        let mut left = pop.batch;
        let mut runs: Vec<Run> = Vec::new();
        for message in answer.body["messages"].as_array().into_iter().flatten() {
            let lanes = 0..self.model.lanes.len();
            let lane = lanes.clone().find(|l| message["partition"] == Place::lane(*l).partition);
            let lane = lane.ok_or_else(|| format!("a lane that is none: {message}"))?;
            if runs.last().is_some_and(|run| run.lane == lane) {
                continue;
            }
            let run = self.model.claim((lane, pop.group), left, lease);
            let run = run.ok_or_else(|| format!("lane {lane} was not claimable: {message}"))?;
            left -= run.len();
            runs.push(run);
        }
        if runs.len() > pop.partitions {
            return Err(format!("{} partitions of {}", runs.len(), pop.partitions));
        }
        // With one broker that knows everything, nothing is passed by while the budget lasts.
        let strict = self.plan.stage != Stage::Roaming && left > 0 && runs.len() < pop.partitions;
        let passed = (0..self.model.lanes.len()).find(|lane| {
            self.model.claimable(*lane, pop.group) && !before.lanes[*lane].hidden[pop.group]
        });
        match passed.filter(|_| strict) {
            Some(lane) => Err(format!("lane {lane} is claimable and was passed by")),
            None => Ok(runs),
        }
    }

    async fn expire(&mut self, lane: usize, group: usize) {
        self.stats.count("expire");
        let id = &self.names.partitions[&Place::lane(lane)];
        self.sql.expire(id, &self.names.groups[group]).await;
        self.ends.remove(&(lane, group));
        self.model.expire(lane, group);
    }

    async fn restart(&mut self) {
        self.stats.count("restart");
        if let Some(server) = self.own.take() {
            server.stop().await;
        }
        let server = self.world.another().await;
        self.clients[0] = server.client();
        self.own = Some(server);
        self.model.restarted();
    }
}

/// Sends; the entries of the answer.
async fn send(client: &Client, path: &str, body: &Value) -> Result<Vec<Value>, String> {
    let request = client.request(Method::POST, path).body(body.to_string());
    let answer = client.try_send(request).await.map_err(|e| format!("no answer: {e}"))?;
    let good = if path == "/api/v1/push" { 201 } else { 200 };
    if answer.status != good {
        return Err(format!("{} {}: {}", answer.status, path, answer.text));
    }
    Ok(match answer.body {
        Value::Array(entries) => entries,
        one => vec![one],
    })
}
