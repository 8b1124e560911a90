//! State of shards as this broker knows it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Mutex;

use crate::db::state::ShardRow;
use crate::fold::Reads;
use crate::types::cycle::StateOp;
use crate::types::id::Pid;

/// Rows up to which a whole shard is kept; larger ones are read as the fold asks.
pub(super) const ROWS_MAX: usize = 2_000;
/// Shards kept per query.
const SHARDS_MAX: usize = 1_024;
/// Bytes of values up to which a shard is kept after its batch.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// What is known of one shard at one version.
#[derive(Clone, Debug, Default)]
pub(super) struct Shard {
    /// Version that the rows belong to.
    pub(super) version: i64,
    /// Watermark that the last cycle left, Unix ms.
    pub(super) watermark_ms: Option<i64>,
    /// All rows, or `None` for a shard too large to keep.
    pub(super) rows: Option<BTreeMap<String, ShardRow>>,
}

/// Key of the watermark row, which the host writes and the fold never sees.
pub(super) const WATERMARK: &str = crate::fold::WATERMARK_KEY;

impl Shard {
    /// Rows that a fold asked for, in key order; `None` when the shard is not kept.
    pub(super) fn answer(&self, reads: &Reads) -> Option<Vec<(String, String)>> {
        let rows = self.rows.as_ref()?;
        let mut found: BTreeMap<&String, &String> = BTreeMap::new();
        for key in &reads.keys {
            if let Some((key, row)) = rows.get_key_value(key) {
                found.insert(key, &row.value);
            }
        }
        for prefix in &reads.prefixes {
            let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
            let hits = rows.range::<str, _>(from).take_while(|(key, _)| key.starts_with(prefix));
            found.extend(hits.map(|(key, row)| (key, &row.value)));
        }
        if let Some(due) = reads.due {
            let hits = rows.iter().filter(|(_, row)| row.due_ms.is_some_and(|at| at <= due));
            found.extend(hits.map(|(key, row)| (key, &row.value)));
        }
        let visible = found.into_iter().filter(|(key, _)| *key != WATERMARK);
        Some(visible.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// Takes in what a committed cycle did.
    pub(super) fn apply(&mut self, ops: Vec<StateOp>, version: i64, watermark_ms: Option<i64>) {
        self.version = version;
        self.watermark_ms = watermark_ms.or(self.watermark_ms);
        let Some(rows) = &mut self.rows else { return };
        for op in ops {
            match op {
                StateOp::Upsert { key, value, due_ms } => {
                    rows.insert(key, ShardRow { value, due_ms });
                }
                StateOp::Delete { key } => {
                    rows.remove(&key);
                }
            }
        }
        if rows.len() > ROWS_MAX {
            self.rows = None;
        }
    }

    fn bytes(&self) -> usize {
        let rows = self.rows.iter().flatten();
        rows.map(|(key, row)| key.len() + row.value.len()).sum()
    }
}

/// Shards of one query between batches.
#[derive(Debug, Default)]
pub(super) struct Shards {
    kept: Mutex<HashMap<Pid, Shard>>,
}

impl Shards {
    /// Takes a shard out: whoever works on the partition owns it meanwhile.
    pub(super) fn take(&self, pid: Pid) -> Option<Shard> {
        self.kept.lock().expect("no holder panics").remove(&pid)
    }

    /// Puts a shard back after its batch.
    pub(super) fn put(&self, pid: Pid, shard: Shard) {
        if shard.rows.is_none() || shard.bytes() > BYTES_MAX {
            return;
        }
        let mut kept = self.kept.lock().expect("no holder panics");
        if kept.len() >= SHARDS_MAX {
            kept.clear();
        }
        kept.insert(pid, shard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard() -> Shard {
        let row = |value: &str, due_ms| ShardRow { value: value.to_owned(), due_ms };
        let rows = [
            ("__wm__", row("{}", None)),
            ("a", row("1", Some(10))),
            ("a\u{1f}b", row("2", Some(20))),
            ("b", row("3", None)),
        ];
        Shard {
            rows: Some(rows.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
            ..Shard::default()
        }
    }

    fn keys(shard: &Shard, reads: &Reads) -> Vec<String> {
        shard.answer(reads).expect("kept").into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn an_answer_is_the_union_in_key_order_without_the_watermark() {
        let all = Reads { prefixes: vec![String::new()], ..Reads::default() };
        assert_eq!(keys(&shard(), &all), ["a", "a\u{1f}b", "b"]);
        let some = Reads {
            keys: vec!["b".to_owned(), "missing".to_owned()],
            prefixes: vec!["a\u{1f}".to_owned()],
            due: Some(10),
        };
        assert_eq!(keys(&shard(), &some), ["a", "a\u{1f}b", "b"]);
    }

    #[test]
    fn ops_of_a_committed_cycle_change_the_rows() {
        let mut shard = shard();
        let ops = vec![
            StateOp::Delete { key: "a".to_owned() },
            StateOp::Upsert { key: "c".to_owned(), value: "4".to_owned(), due_ms: Some(5) },
        ];
        shard.apply(ops, 7, Some(99));
        let due = Reads { due: Some(15), ..Reads::default() };
        assert_eq!(keys(&shard, &due), ["c"]);
        assert_eq!((shard.version, shard.watermark_ms), (7, Some(99)));
    }
}
