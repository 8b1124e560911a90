//! What the store must show of a model, and what must hold in the model itself.

use serde_json::{Value, json};

use super::fold;
use super::model::{Dead, Fate, Lane, Message, Model, Place, QUERY, Queue};

impl Model {
    /// What SQL must show: every partition that exists, in order.
    pub(super) fn picture(&self) -> Value {
        let shown = |place: &Place, log: &Vec<Message>| {
            let mut shown = json!({
                "queue": if place.queue == Queue::Source { 0 } else { 1 },
                "partition": place.partition, "next_offset": log.len(),
                "cursors": [], "rows": {}, "dead": [],
            });
            let lane = (0..self.lanes.len()).find(|lane| Place::lane(*lane) == *place);
            if let Some(lane) = lane.map(|lane| &self.lanes[lane]) {
                shown["cursors"] = lane.picture();
                shown["rows"] = json!(lane.rows);
                let mut dead: Vec<&Dead> = lane.dead.iter().collect();
                dead.sort_by_key(|d| (d.offset, d.group));
                shown["dead"] =
                    dead.iter().map(|d| json!([d.offset, d.group, d.retries])).collect();
            }
            shown
        };
        self.logs.iter().map(|(place, log)| shown(place, log)).collect()
    }

    /// What must hold between a step's beginning and its end, whatever the step was.
    pub(super) fn audit(&self, before: &Self) {
        for (place, log) in &before.logs {
            assert_eq!(self.logs[place][..log.len()], log[..], "a log only grows");
        }
        for (index, lane) in self.lanes.iter().enumerate() {
            let old = &before.lanes[index];
            for (cursor, old) in lane.cursors.iter().zip(&old.cursors) {
                let Some(cursor) = cursor else { continue };
                let known = old.as_ref().map_or(&[][..], |old| &old.fates);
                assert_eq!(cursor.fates[..known.len()], *known, "what is settled stays");
                let passed = i64::try_from(cursor.fates.len()).expect("short");
                assert_eq!(passed, cursor.committed + 1, "one fate for each offset");
                assert!(cursor.batch_end.is_none_or(|end| end >= cursor.committed));
            }
            let fates = lane.cursors[QUERY].as_ref().map_or(&[][..], |c| &c.fates);
            let settled = (0..).zip(fates).filter(|(_, fate)| **fate == Fate::Folded);
            let settled: Vec<i64> = settled.map(|(offset, _)| offset).collect();
            assert_eq!(fold::folded(&lane.history), settled, "folded once, in order");
            let rows = fold::replay(&lane.history, self.log(index));
            assert_eq!(rows, lane.rows, "state is the fold of what was settled");
        }
    }
}

impl Lane {
    fn picture(&self) -> Value {
        let cursors = self.cursors.iter().enumerate();
        cursors
            .filter_map(|(group, cursor)| Some((group, cursor.as_ref()?)))
            .map(|(group, c)| {
                json!({"group": group, "committed": c.committed, "batch_end": c.batch_end,
                    "lease": c.lease, "live": c.live, "retries": c.retries,
                    "consumed": c.consumed})
            })
            .collect()
    }
}
