//! What windows do with records: the reducer behind `aggregate` and `reduce`.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::json;

/// Folds records into an accumulator that is a state row between batches.
pub(crate) trait Reducer<T> {
    type Acc;
    fn initial(&self) -> Self::Acc;
    fn step(&self, acc: &mut Self::Acc, record: &T);
    fn load(&self, text: &str) -> Result<Self::Acc, String>;
    fn store(&self, acc: &Self::Acc, out: &mut Vec<u8>) -> Result<(), String>;
}

/// A reducer of the user's own.
pub(crate) struct Reduce<A, F> {
    pub(crate) initial: A,
    pub(crate) f: F,
}

impl<T, A, F> Reducer<T> for Reduce<A, F>
where
    A: Clone + Serialize + DeserializeOwned,
    F: Fn(&mut A, &T),
{
    type Acc = A;

    fn initial(&self) -> A {
        self.initial.clone()
    }

    fn step(&self, acc: &mut A, record: &T) {
        (self.f)(acc, record);
    }

    fn load(&self, text: &str) -> Result<A, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    fn store(&self, acc: &A, out: &mut Vec<u8>) -> Result<(), String> {
        json::write(out, acc)
    }
}
