//! JSON of requests, read in one pass: what stands in a field, whatever it is.
//!
//! The contract treats a missing field, `null` and a value of another type differently from field
//! to field. [`Maybe`] keeps the difference, so that the handler decides and names the field.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Number;
use serde_json::value::RawValue;

use super::error::ApiError;

/// What stands in a field that expects a `T`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Maybe<T> {
    /// No such field.
    #[default]
    Missing,
    /// `null`.
    Null,
    /// A value of the expected type.
    Is(T),
    /// A value of another type.
    Other,
}

/// Text of a request.
pub(super) type Text<'a> = Maybe<Cow<'a, str>>;

/// An array.
#[derive(Debug)]
pub(super) struct List<T>(pub(super) Vec<T>);

/// An object; unknown keys are ignored.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

impl<T> Maybe<T> {
    /// The value, if it has the expected type.
    pub(super) fn ok(self) -> Option<T> {
        match self {
            Self::Is(value) => Some(value),
            _ => None,
        }
    }

    /// The value; `None` for a missing one or `null`.
    ///
    /// # Errors
    /// 400 for a value of another type, with `what` it must be.
    pub(super) fn optional(self, field: &str, what: &'static str) -> Result<Option<T>, ApiError> {
        match self {
            Self::Is(value) => Ok(Some(value)),
            Self::Missing | Self::Null => Ok(None),
            Self::Other => Err(ApiError::bad(format!("{field} must be {what}"))),
        }
    }
}

impl<'a> Text<'a> {
    /// The text, unless it is missing, empty or no text.
    pub(super) fn filled(self) -> Option<Cow<'a, str>> {
        self.ok().filter(|text| !text.is_empty())
    }
}

/// How a type is made of the JSON value that it expects.
pub(super) trait Shape<'de>: Sized {
    fn from_text(_text: Cow<'de, str>) -> Option<Self> {
        None
    }

    fn from_bool(_value: bool) -> Option<Self> {
        None
    }

    fn from_number(_number: Number) -> Option<Self> {
        None
    }

    fn from_seq<A: SeqAccess<'de>>(mut seq: A) -> Result<Option<Self>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn from_map<A: MapAccess<'de>>(mut map: A) -> Result<Option<Self>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

impl<'de: 'a, 'a> Shape<'de> for Cow<'a, str> {
    fn from_text(text: Cow<'de, str>) -> Option<Self> {
        Some(text)
    }
}

impl Shape<'_> for bool {
    fn from_bool(value: bool) -> Option<Self> {
        Some(value)
    }
}

impl Shape<'_> for Number {
    fn from_number(number: Number) -> Option<Self> {
        Some(number)
    }
}

impl<'de, T: Deserialize<'de>> Shape<'de> for List<T> {
    fn from_seq<A: SeqAccess<'de>>(mut seq: A) -> Result<Option<Self>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Some(Self(items)))
    }
}

impl<'de, T: Deserialize<'de>> Shape<'de> for Object<T> {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Option<Self>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|value| Some(Self(value)))
    }
}

struct MaybeVisitor<T>(PhantomData<T>);

fn shaped<T>(value: Option<T>) -> Maybe<T> {
    value.map_or(Maybe::Other, Maybe::Is)
}

impl<'de, T: Shape<'de>> Visitor<'de> for MaybeVisitor<T> {
    type Value = Maybe<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Maybe::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(shaped(T::from_bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(shaped(T::from_number(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(shaped(T::from_number(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(shaped(Number::from_f64(value).and_then(T::from_number)))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(shaped(T::from_text(Cow::Borrowed(text))))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(shaped(T::from_text(Cow::Owned(text.to_owned()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        T::from_seq(seq).map(shaped)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::from_map(map).map(shaped)
    }
}

impl<'de, T: Shape<'de>> Deserialize<'de> for Maybe<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MaybeVisitor(PhantomData))
    }
}

/// For `deserialize_with`: JSON text of a field as it was spelled, `null` included.
pub(super) fn verbatim<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Reads a body that must be an object; an empty one reads as `{}`, which SDKs leave out.
///
/// # Errors
/// 400 for anything else.
pub(super) fn object<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, ApiError> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    match serde_json::from_slice::<Maybe<Object<T>>>(body) {
        Ok(Maybe::Is(Object(value))) => Ok(value),
        Ok(_) => Err(ApiError::bad("bad body: it must be a JSON object")),
        Err(cause) => Err(ApiError::bad(format!("bad body: {cause}"))),
    }
}

/// Reads a body whose content is optional: anything unreadable is the default.
pub(super) fn object_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> T {
    match serde_json::from_slice::<Maybe<Object<T>>>(body) {
        Ok(Maybe::Is(Object(value))) => value,
        _ => T::default(),
    }
}

/// Why a name or id is refused: a control character or its length; `None` if it is good.
pub(super) fn fault(text: &str, bytes_max: usize) -> Option<String> {
    if text.len() > bytes_max {
        return Some(format!("is {} bytes long, the limit is {bytes_max}", text.len()));
    }
    let at = text.bytes().position(|byte| byte < 0x20)?;
    let code = text.as_bytes().get(at)?;
    Some(format!("holds the control character U+{code:04X} at byte {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Probe<'a> {
        #[serde(borrow)]
        text: Text<'a>,
        flag: Maybe<bool>,
        #[serde(borrow, deserialize_with = "verbatim")]
        raw: Option<&'a RawValue>,
        list: Maybe<List<Maybe<Object<Inner>>>>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        n: Maybe<Number>,
    }

    fn probe(body: &str) -> Probe<'_> {
        object(body.as_bytes()).expect("an object")
    }

    #[test]
    fn every_kind_of_value_is_told_apart() {
        assert_eq!(probe("{}").text, Maybe::Missing);
        assert_eq!(probe(r#"{"text":null}"#).text, Maybe::Null);
        assert_eq!(probe(r#"{"text":"a\u001fb"}"#).text, Maybe::Is("a\u{1f}b".into()));
        for other in ["1", "-1", "1.5", "true", "[[1],{}]", r#"{"a":[1]}"#] {
            assert_eq!(probe(&format!(r#"{{"text":{other}}}"#)).text, Maybe::Other, "{other}");
        }
        assert_eq!(probe(r#"{"flag":true}"#).flag, Maybe::Is(true));
        assert_eq!(probe(r#"{"flag":"true"}"#).flag, Maybe::Other);
        let Maybe::Is(List(list)) = probe(r#"{"list":[{"n":7,"x":[]},5]}"#).list else {
            panic!("an array");
        };
        assert!(matches!(&list[0], Maybe::Is(Object(i)) if i.n == Maybe::Is(7.into())));
        assert!(matches!(&list[1], Maybe::Other));
    }

    /// data-plane 9, 11
    #[test]
    fn verbatim_text_keeps_its_spelling_and_null_is_a_value() {
        assert!(probe("{}").raw.is_none());
        assert_eq!(probe(r#"{"raw":null}"#).raw.map(RawValue::get), Some("null"));
        let raw = probe(r#"{"raw": {"b":1.50, "a":"\u0000"} }"#).raw.map(RawValue::get);
        assert_eq!(raw, Some(r#"{"b":1.50, "a":"\u0000"}"#));
    }

    /// streams C7
    #[test]
    fn bodies_that_are_no_object_are_refused() {
        assert!(object::<Probe<'_>>(b" \n").is_ok());
        for body in ["[]", "[[]]", "5", "null", "{", "{} x", "\"\"", "\u{feff}{}"] {
            assert!(object::<Probe<'_>>(body.as_bytes()).is_err(), "{body}");
        }
        assert!(object::<Probe<'_>>(b"{\"text\":\"\xff\"}").is_err());
        assert!(object::<Probe<'_>>(br#"{"text":"\ud800"}"#).is_err());
    }

    /// data-plane 12
    #[test]
    fn faults_name_limit_and_place() {
        assert_eq!(fault("a b/ü", 10), None);
        let control = fault("ab\u{1}", 10);
        assert_eq!(control.as_deref(), Some("holds the control character U+0001 at byte 2"));
        assert_eq!(fault("abc", 2).as_deref(), Some("is 3 bytes long, the limit is 2"));
    }
}
