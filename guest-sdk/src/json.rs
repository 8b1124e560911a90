//! JSON out of the fold: canonical numbers, payload shapes, payloads kept as they came.

use std::io;
use std::ops::Deref;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::ser::{CompactFormatter, Formatter};
use serde_json::value::RawValue;

use crate::time::Timestamp;

/// 2^53: below it every integral double is exact, so it may be written without a fraction.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The integer that a double holds, where it has no fraction and is exact.
#[expect(clippy::cast_possible_truncation, reason = "checked: integral and below 2^53")]
pub(crate) fn integral(v: f64) -> Option<i64> {
    (v.fract() == 0.0 && v.abs() < EXACT).then_some(v as i64)
}

/// Compact JSON in which integral doubles have no fraction, so that a state row reads the same
/// whoever wrote it.
struct Canonical;

impl Formatter for Canonical {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, v: f64) -> io::Result<()> {
        match integral(v) {
            Some(n) => CompactFormatter.write_i64(writer, n),
            None => CompactFormatter.write_f64(writer, v),
        }
    }

    fn write_f32<W: ?Sized + io::Write>(&mut self, writer: &mut W, v: f32) -> io::Result<()> {
        match integral(f64::from(v)) {
            Some(n) => CompactFormatter.write_i64(writer, n),
            None => CompactFormatter.write_f32(writer, v),
        }
    }
}

/// Appends the canonical JSON of a value.
pub(crate) fn write<V: Serialize + ?Sized>(out: &mut Vec<u8>, value: &V) -> Result<(), String> {
    value
        .serialize(&mut serde_json::Serializer::with_formatter(out, Canonical))
        .map_err(|e| format!("a value cannot be written as JSON: {e}"))
}

/// Canonical JSON as text.
pub(crate) fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|e| format!("a value cannot be written as JSON: {e}"))
}

/// The payload of a sink message: objects as they are, anything else as `{"value": ...}`.
pub(crate) fn payload<V: Serialize + ?Sized>(value: &V) -> Result<String, String> {
    let mut out = Vec::with_capacity(128);
    write(&mut out, value)?;
    if !out.trim_ascii_start().starts_with(b"{") {
        out.splice(0..0, *br#"{"value":"#);
        out.push(b'}');
    }
    text(out)
}

/// A JSON document as text.
#[derive(Debug, Clone)]
pub struct Document(Box<RawValue>);

impl Document {
    /// The document's text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.get()
    }
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A value of a member that is put before others.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Json<'a> {
    Text(&'a str),
    Time(Timestamp),
}

/// An object that has these members and then those of `value`, which goes under `value` if it is
/// no object.
pub(crate) fn with_members<V: Serialize>(
    head: &[(&str, Json<'_>)],
    value: &V,
) -> Result<Document, String> {
    let mut out = Vec::with_capacity(192);
    for (name, member) in head {
        out.push(if out.is_empty() { b'{' } else { b',' });
        write(&mut out, name)?;
        out.push(b':');
        write(&mut out, member)?;
    }
    let rest = payload(value)?;
    let members = rest.trim_start().strip_prefix('{').unwrap_or("}").trim_start();
    if !members.starts_with('}') {
        out.push(b',');
    }
    out.extend_from_slice(members.as_bytes());
    RawValue::from_string(text(out)?).map(Document).map_err(|e| e.to_string())
}

/// A payload that is read as `T` and written again exactly as it came, members that `T` does not
/// know included.
///
/// ```
/// use foldmq_guest::{prelude::*, testing::TestHost};
/// #[derive(Deserialize)]
/// struct Order { amount: f64 }
/// let mut host = TestHost::new(|| stream::<Raw<Order>>().filter(|o| o.amount > 5.0).sink("big"));
/// host.push(r#"{"amount": 7.10, "id": 12345678901234567890123}"#, 1);
/// host.run_all(100).unwrap();
/// assert_eq!(host.emits()[0].payload, r#"{"amount": 7.10, "id": 12345678901234567890123}"#);
/// ```
#[derive(Debug, Clone)]
pub struct Raw<T> {
    value: T,
    text: Box<RawValue>,
}

impl<T> Raw<T> {
    /// The payload's text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.text.get()
    }

    /// Gives up the text.
    #[must_use]
    pub fn into_value(self) -> T {
        self.value
    }
}

impl<T> Deref for Raw<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Serialize for Raw<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de, T: serde::de::DeserializeOwned> Deserialize<'de> for Raw<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let value = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self { value, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 4 of the operators: canonical numbers.
    #[test]
    fn numbers_are_canonical() {
        let written = |v: f64| {
            let mut out = Vec::new();
            write(&mut out, &v).expect("a number can be written");
            text(out).expect("JSON is text")
        };
        for (v, want) in [
            (3.0, "3"),
            (-0.0, "0"),
            (0.5, "0.5"),
            (-7.0, "-7"),
            (0.1 + 0.2, "0.30000000000000004"),
            (9_007_199_254_740_991.0, "9007199254740991"),
            (f64::NAN, "null"),
            (f64::NEG_INFINITY, "null"),
        ] {
            assert_eq!(written(v), want);
        }
        assert_eq!(written(EXACT).parse(), Ok(EXACT));
        assert_eq!(written(1e300).parse(), Ok(1e300));
    }

    /// operators V13: objects go out bare, everything else wrapped.
    #[test]
    fn payload_shapes() {
        let shape = |json: &str| {
            let value: serde_json::Value = serde_json::from_str(json).expect("the case is JSON");
            payload(&value).expect("a value can be written")
        };
        for (value, want) in [
            ("1", r#"{"value":1}"#),
            ("null", r#"{"value":null}"#),
            ("[2]", r#"{"value":[2]}"#),
            (r#"{"a":3}"#, r#"{"a":3}"#),
        ] {
            assert_eq!(shape(value), want);
        }
    }
}
