//! The named aggregates: count, sum, min, max, avg.
//!
//! Doubles, folded from the left in the order of the batch, without compensation: the same numbers
//! as every other SDK gives.

use std::collections::BTreeMap;
use std::ops::Index;
use std::rc::Rc;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::json::{self, integral};
use crate::reducer::Reducer;

const AVG_SUM: &str = "__avg_sum";
const AVG_COUNT: &str = "__avg_count";

/// What an extractor may return: a number, or an `Option` of one. None, JSON values that are no
/// numbers and non-finite doubles are absent: a sum and an average pass over them, and so do min
/// and max.
pub trait Number {
    /// The number as a double.
    fn number(self) -> Option<f64>;
}

macro_rules! exact_number {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn number(self) -> Option<f64> {
                Some(f64::from(self))
            }
        }
    )*};
}
exact_number!(i8, i16, i32, u8, u16, u32);

macro_rules! wide_number {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn number(self) -> Option<f64> {
                Some(self as f64)
            }
        }
    )*};
}
// Rounded above 2^53, as JSON numbers are by every double-based reader.
wide_number!(i64, u64, isize, usize);

impl Number for f64 {
    fn number(self) -> Option<f64> {
        self.is_finite().then_some(self)
    }
}

impl Number for f32 {
    fn number(self) -> Option<f64> {
        f64::from(self).number()
    }
}

impl Number for Value {
    fn number(self) -> Option<f64> {
        self.as_f64()
    }
}

impl<N: Number> Number for Option<N> {
    fn number(self) -> Option<f64> {
        self.and_then(N::number)
    }
}

type Extract<T> = Box<dyn Fn(&T) -> Option<f64>>;

enum Kind<T> {
    Count,
    Sum(Extract<T>),
    Min(Extract<T>),
    Max(Extract<T>),
    Avg(Extract<T>),
}

/// The fields of an aggregate, in the order in which they are declared.
///
/// ```
/// use foldmq_guest::{prelude::*, testing::TestHost};
/// let fold = || stream::<Option<f64>>().tumbling(mins(1)).aggregate(|a| {
///     a.count("n").sum("sum", |v| *v).min("min", |v| *v).max("max", |v| *v).avg("avg", |v| *v)
/// });
/// let mut host = TestHost::new(move || fold().map(|t, _| [t["n"], t["avg"]]).sink("stats"));
/// for payload in ["1", "null", "4"] {
///     host.push(payload, 0);
/// }
/// host.run_all(100).unwrap();
/// host.flush_at(60_000).unwrap();
/// assert_eq!(host.emits()[0].payload, r#"{"value":[3,2.5]}"#);
/// ```
pub struct Aggregate<T> {
    fields: Vec<Kind<T>>,
    /// Members of the accumulator; an average takes three.
    names: Vec<String>,
}

impl<T> Aggregate<T> {
    pub(crate) fn new() -> Self {
        Self { fields: Vec::new(), names: Vec::new() }
    }

    fn field(mut self, name: impl Into<String>, kind: Kind<T>) -> Self {
        self.names.push(name.into());
        if matches!(kind, Kind::Avg(_)) {
            self.names.extend([AVG_SUM.to_owned(), AVG_COUNT.to_owned()]);
        }
        self.fields.push(kind);
        self
    }

    /// How many records.
    #[must_use]
    pub fn count(self, name: impl Into<String>) -> Self {
        self.field(name, Kind::Count)
    }

    /// Sum of a number; 0 where none came.
    #[must_use]
    pub fn sum<N: Number>(self, name: impl Into<String>, f: impl Fn(&T) -> N + 'static) -> Self {
        self.field(name, Kind::Sum(Box::new(move |record| f(record).number())))
    }

    /// Smallest number; null where none came.
    #[must_use]
    pub fn min<N: Number>(self, name: impl Into<String>, f: impl Fn(&T) -> N + 'static) -> Self {
        self.field(name, Kind::Min(Box::new(move |record| f(record).number())))
    }

    /// Largest number; null where none came.
    #[must_use]
    pub fn max<N: Number>(self, name: impl Into<String>, f: impl Fn(&T) -> N + 'static) -> Self {
        self.field(name, Kind::Max(Box::new(move |record| f(record).number())))
    }

    /// Mean of a number; 0 where none came. Its sum and count are members of the result too, as
    /// `__avg_sum` and `__avg_count`, so an aggregate has room for one average.
    #[must_use]
    pub fn avg<N: Number>(self, name: impl Into<String>, f: impl Fn(&T) -> N + 'static) -> Self {
        self.field(name, Kind::Avg(Box::new(move |record| f(record).number())))
    }

    pub(crate) fn finish(self, problems: &mut Vec<String>) -> Fields<T> {
        if self.fields.is_empty() {
            problems.push("aggregate: at least one field is needed".into());
        }
        let mut seen = self.names.clone();
        seen.sort_unstable();
        for pair in seen.windows(2) {
            if let [a, b] = pair
                && a == b
            {
                problems.push(format!("aggregate: two fields are named {a:?}"));
            }
        }
        Fields { fields: self.fields, names: self.names.into() }
    }
}

/// The reducer of an aggregate.
pub(crate) struct Fields<T> {
    fields: Vec<Kind<T>>,
    names: Rc<[String]>,
}

impl<T> Fields<T> {
    fn initial_values(&self) -> Vec<Option<f64>> {
        let mut values = Vec::with_capacity(self.names.len());
        for field in &self.fields {
            match field {
                Kind::Count | Kind::Sum(_) => values.push(Some(0.0)),
                Kind::Min(_) | Kind::Max(_) => values.push(None),
                Kind::Avg(_) => values.extend([Some(0.0); 3]),
            }
        }
        values
    }
}

impl<T> Reducer<T> for Fields<T> {
    type Acc = Totals;

    fn initial(&self) -> Totals {
        Totals { names: self.names.clone(), values: self.initial_values() }
    }

    fn step(&self, acc: &mut Totals, record: &T) {
        let mut values = acc.values.iter_mut();
        for field in &self.fields {
            let Some(value) = values.next() else { return };
            match field {
                Kind::Count => add(value, 1.0),
                Kind::Sum(f) => add(value, f(record).unwrap_or(0.0)),
                Kind::Min(f) => keep(value, f(record), |new, old| new < old),
                Kind::Max(f) => keep(value, f(record), |new, old| new > old),
                Kind::Avg(f) => {
                    let (Some(sum), Some(count)) = (values.next(), values.next()) else {
                        return;
                    };
                    if let Some(v) = f(record) {
                        add(sum, v);
                        add(count, 1.0);
                        *value = sum.zip(*count).map(|(sum, count)| sum / count);
                    }
                }
            }
        }
    }

    fn load(&self, text: &str) -> Result<Totals, String> {
        // What is missing or no number counts as at the beginning.
        let members: BTreeMap<String, Value> = serde_json::from_str(text).unwrap_or_default();
        let mut acc = self.initial();
        for (name, value) in self.names.iter().zip(&mut acc.values) {
            if let Some(stored) = members.get(name).and_then(Value::as_f64) {
                *value = Some(stored);
            }
        }
        Ok(acc)
    }

    fn store(&self, acc: &Totals, out: &mut Vec<u8>) -> Result<(), String> {
        json::write(out, acc)
    }
}

fn add(value: &mut Option<f64>, v: f64) {
    *value = Some(value.unwrap_or(0.0) + v);
}

fn keep(value: &mut Option<f64>, new: Option<f64>, better: fn(f64, f64) -> bool) {
    if let Some(new) = new
        && value.is_none_or(|old| better(new, old))
    {
        *value = Some(new);
    }
}

/// The result of an aggregate: by name, None where it is null or no such field is declared. Writes
/// as an object with the fields in their declared order, integral numbers without a fraction.
#[derive(Debug, Clone, PartialEq)]
pub struct Totals {
    names: Rc<[String]>,
    values: Vec<Option<f64>>,
}

impl Index<&str> for Totals {
    type Output = Option<f64>;

    fn index(&self, name: &str) -> &Option<f64> {
        let at = self.names.iter().position(|n| n == name);
        at.and_then(|at| self.values.get(at)).unwrap_or(&None)
    }
}

impl Serialize for Totals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.names.len()))?;
        for (name, value) in self.names.iter().zip(&self.values) {
            match value.map(|v| (v, integral(v))) {
                Some((_, Some(n))) => map.serialize_entry(name, &n)?,
                Some((v, None)) => map.serialize_entry(name, &v)?,
                None => map.serialize_entry(name, &())?,
            }
        }
        map.end()
    }
}
