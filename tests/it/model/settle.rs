//! How requests settle: acks and transactions (data-plane 4 and 6), cycles (streams 4 to 7).

use super::fold;
use super::model::{Cursor, Dead, Fate, Model, Place, QUERY};
use super::request::{
    Ack, AckItem, Acked, Cycle, Cycled, Done, Expected, Operation, Settle, Status, Target,
    Transaction,
};

/// What a rejected ack answers, by the word that the error must contain.
pub(super) const LEASE: &str = "lease";
pub(super) const LATE: &str = "committed";
pub(super) const UNKNOWN: &str = "unresolv";
pub(super) const STRANGER: &str = "consumer not found";
pub(super) const IDLE: &str = "no outstanding batch";
pub(super) const APPLIED: &str = "already applied";

/// Acks of one (partition, group, lease): items with their place in the request.
type Group<'a> = ((usize, usize, Option<&'a str>), Vec<(usize, &'a AckItem)>);

fn grouped<'a>(
    items: impl Iterator<Item = ((usize, usize, Option<&'a str>), &'a AckItem)>,
) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (at, (key, item)) in items.enumerate() {
        match groups.iter_mut().find(|group| group.0 == key) {
            Some(group) => group.1.push((at, item)),
            None => groups.push((key, vec![(at, item)])),
        }
    }
    groups
}

impl Model {
    pub(super) fn ack(&mut self, ack: &Ack) -> Vec<Expected> {
        let lease = ack.lease.as_deref();
        let groups = grouped(ack.items.iter().map(|i| ((i.lane, ack.group, lease), i)));
        let mut out: Vec<(usize, Expected)> = Vec::new();
        for ((lane, group, lease), items) in groups {
            let pairs: Vec<_> = items.iter().map(|(_, i)| (i.target, i.status)).collect();
            let acked = self.settle((lane, group), lease, &pairs);
            let shown = items.into_iter().zip(acked);
            out.extend(shown.map(|((at, item), a)| (at, Expected::Acked(item.clone(), a))));
        }
        out.sort_by_key(|(at, _)| *at);
        out.into_iter().map(|(_, expected)| expected).collect()
    }

    /// One step on one cursor: the rules of data-plane 4, in their order.
    fn settle(
        &mut self,
        (lane, group): (usize, usize),
        lease: Option<&str>,
        items: &[(Target, Status)],
    ) -> Vec<Acked> {
        let (end, settings) = (self.end(lane), self.settings);
        let all = |word| vec![Acked { error: Some(word), ..Acked::default() }; items.len()];
        let lane = &mut self.lanes[lane];
        let Some(cursor) = lane.cursors[group].as_mut() else { return all(STRANGER) };
        if lease.is_some_and(|lease| !cursor.holds(lease)) {
            return all(LEASE);
        }
        let (low, high) = (cursor.committed, cursor.batch_end.unwrap_or(end - 1));
        let within = |target: Target| target.filter(|at| *at > low && *at <= high);
        let signals = items.iter().filter(|(_, status)| *status != Status::Completed);
        let signal = signals
            .filter_map(|(target, status)| Some((within(*target)?, *status)))
            .min_by_key(|(at, status)| {
                let rank = [Status::Dead, Status::Failed, Status::Retry];
                (*at, rank.iter().position(|s| s == status))
            });
        let done = items.iter().filter(|(_, status)| *status == Status::Completed);
        let done = done.filter_map(|(target, _)| within(*target));
        let done = done.filter(|at| signal.is_none_or(|(limit, _)| *at < limit)).max();
        let reach = done.unwrap_or(low);

        let given_up = signal.filter(|(_, status)| match status {
            Status::Dead => true,
            Status::Failed => cursor.batch_end.is_some() && cursor.retries >= settings.retry_limit,
            _ => false,
        });
        let recorded = given_up.filter(|(_, s)| *s == Status::Dead || settings.dead_letter);
        // Nothing is out that could be given back.
        let idle = signal.is_some() && given_up.is_none() && cursor.batch_end.is_none();
        let mut released = false;
        let mut to = reach;
        if let Some((at, _)) = given_up {
            let fate = if recorded.is_some() { Fate::Dead } else { Fate::Dropped };
            to = at;
            if recorded.is_some() {
                lane.dead.push(Dead { group, offset: at, retries: cursor.retries });
            }
            cursor.pass(to, Fate::Acked, Some((at, fate)));
            cursor.retries = 0;
            released = true;
        } else if signal.is_some() && !idle {
            cursor.pass(to, Fate::Acked, None);
            cursor.retries += i32::from(signal.is_some_and(|(_, s)| s == Status::Failed));
            released = true;
        } else if reach > low {
            released = cursor.batch_end.is_none_or(|end| reach >= end);
            cursor.pass(to, Fate::Acked, None);
            if released {
                cursor.retries = 0;
            }
        }
        cursor.consumed += to - low;
        if released {
            cursor.release();
            lane.hidden[group] = false;
        }
        let shown = |(target, status): &(Target, Status)| {
            let completed = *status == Status::Completed;
            let error = match (within(*target), target) {
                (Some(_), _) => (idle && !completed).then_some(IDLE),
                (None, Some(at)) if *at <= low => (!completed).then_some(LATE),
                _ => Some(UNKNOWN),
            };
            let late = target.is_some_and(|at| at <= low);
            let dead = !completed && target.is_some_and(|at| recorded.is_some_and(|r| r.0 == at));
            let released = released && error.is_none();
            Acked { error, released, dead, noop: completed && late }
        };
        items.iter().map(shown).collect()
    }

    /// All operations, or the reasons why none.
    pub(super) fn transact(&mut self, t: &Transaction) -> Result<Vec<Done>, Vec<&'static str>> {
        let mut reasons = Vec::new();
        let mut results: Vec<Option<Done>> = vec![None; t.operations.len()];
        let before: Self = self.clone();
        for (at, operation) in t.operations.iter().enumerate() {
            let Operation::Push(place, message) = operation else { continue };
            let stored =
                message.txn.as_deref().is_some_and(|txn| before.find(place, txn).is_some());
            if stored {
                reasons.push("duplicate");
            }
            let (offset, duplicate) = self.append(place, message);
            results[at] = Some(Done::Pushed { place: place.clone(), offset, duplicate });
        }
        let acks = t.operations.iter().enumerate().filter_map(|(at, operation)| match operation {
            Operation::Ack { group, lease, item } => Some((at, *group, lease.as_deref(), item)),
            Operation::Push(..) => None,
        });
        let acks: Vec<_> = acks.collect();
        let mut named: Vec<&str> = t.required.iter().map(String::as_str).collect();
        named.extend(acks.iter().filter_map(|(_, _, lease, _)| *lease));
        named.sort_unstable();
        named.dedup();
        let pairs = grouped(acks.iter().map(|(_, group, _, i)| ((i.lane, *group, None), *i)));
        for ((lane, group, _), items) in pairs {
            let own = items.iter().find_map(|(at, _)| acks[*at].2);
            let holder = before.cursor(lane, group).filter(|c| c.live);
            let holder = holder.and_then(|c| c.lease.as_deref());
            let holder = holder.filter(|lease| t.required.iter().any(|r| r == lease));
            let only = (named.len() == 1).then(|| named[0]);
            let lease = own.or(holder).or(only);
            if lease.is_none() && !named.is_empty() {
                reasons.push("ack_rejected");
                continue;
            }
            let wanted: Vec<_> = items.iter().map(|(_, i)| (i.target, i.status)).collect();
            let acked = self.settle((lane, group), lease, &wanted);
            for ((at, item), acked) in items.iter().zip(acked) {
                if acked.error.is_some_and(|error| error != LATE) {
                    reasons.push("ack_rejected");
                }
                let dead = acked.dead;
                results[acks[*at].0] = Some(Done::Acked { lane, target: item.target, dead });
            }
        }
        if !reasons.is_empty() {
            return Err(reasons);
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// State ops, sink pushes and settlement, or the word that the refusal contains.
    pub(super) fn cycle(&mut self, cycle: &Cycle) -> Result<Cycled, &'static str> {
        let lane = cycle.lane;
        fold::apply(&mut self.lanes[lane].rows, &cycle.work.ops);
        self.lanes[lane].history.extend(cycle.work.effects.iter().cloned());
        let mut pushes: Vec<(Place, bool, i64)> = Vec::new();
        for (place, message) in &cycle.work.emits {
            let (offset, duplicate) = self.append(place, message);
            match pushes.iter_mut().find(|(of, _, _)| of == place) {
                Some(entry) => entry.1 |= !duplicate,
                None => pushes.push((place.clone(), !duplicate, offset)),
            }
        }
        let ops = cycle.work.ops.len();
        let ack = self.settle_cycle(lane, &cycle.settle)?;
        Ok(Cycled { ops, pushes, ack })
    }

    fn settle_cycle(
        &mut self,
        lane: usize,
        settle: &Settle,
    ) -> Result<Option<(i64, bool)>, &'static str> {
        let lease = match settle {
            Settle::Nothing => return Ok(None),
            Settle::Full { lease, .. }
            | Settle::Partial { lease, .. }
            | Settle::Nack { lease, .. } => lease,
        };
        let lane = &mut self.lanes[lane];
        let cursor: &mut Cursor = lane.cursors[QUERY].as_mut().ok_or(LEASE)?;
        if !cursor.holds(lease) {
            return Err(LEASE);
        }
        let end = cursor.batch_end.expect("a live lease has a batch");
        match settle {
            Settle::Nothing => Ok(None),
            Settle::Full { count, .. } => {
                cursor.pass(end, Fate::Folded, None);
                cursor.consumed += count;
                cursor.retries = 0;
                cursor.forget_attempts();
                cursor.release();
                lane.hidden[QUERY] = false;
                Ok(Some((*count, true)))
            }
            Settle::Partial { count, last, .. } => {
                if *count > 0 && last.is_some_and(|at| at <= cursor.committed) {
                    return Err(APPLIED);
                }
                let to = (cursor.committed + count).min(end);
                let count = to - cursor.committed;
                cursor.pass(to, Fate::Folded, None);
                cursor.consumed += count;
                Ok(Some((count, false)))
            }
            Settle::Nack { .. } => {
                cursor.release();
                lane.hidden[QUERY] = false;
                Ok(Some((0, true)))
            }
        }
    }
}
