//! Checks of JSON text that is stored as it was spelled.
//!
//! `serde_json::value::RawValue` proves the syntax but not that every string is text: a lone half
//! of a surrogate pair passes. These scanners look only where an escape stands.

/// Why a JSON text cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonTextError {
    /// Half of a surrogate pair, which is no character.
    #[error("a string holds half a surrogate pair at byte {0}")]
    LoneSurrogate(usize),
    /// U+0000, which PostgreSQL cannot hold in text.
    #[error("a string holds the character U+0000 at byte {0}")]
    Nul(usize),
    /// A number too large for any reader of the state tables.
    #[error("a number has an exponent of more than three digits at byte {0}")]
    Exponent(usize),
}

fn hex4(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes.get(..4)?).ok()?;
    u32::from_str_radix(text, 16).ok()
}

/// Walks the escapes of syntactically valid JSON text.
fn check(text: &str, nul_allowed: bool) -> Result<(), JsonTextError> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(step) = bytes.get(at..).and_then(|rest| rest.iter().position(|b| *b == b'\\')) {
        at += step;
        if bytes.get(at + 1) != Some(&b'u') {
            at += 2;
            continue;
        }
        let unit = bytes.get(at + 2..).and_then(hex4).unwrap_or(0xfffd);
        match unit {
            0 if !nul_allowed => return Err(JsonTextError::Nul(at)),
            0xd800..=0xdbff => {
                let low = match bytes.get(at + 6..at + 8) {
                    Some(b"\\u") => bytes.get(at + 8..).and_then(hex4),
                    _ => None,
                };
                if !low.is_some_and(|low| (0xdc00..=0xdfff).contains(&low)) {
                    return Err(JsonTextError::LoneSurrogate(at));
                }
                at += 12;
                continue;
            }
            0xdc00..=0xdfff => return Err(JsonTextError::LoneSurrogate(at)),
            _ => {}
        }
        at += 6;
    }
    Ok(())
}

/// Checks a message payload: every string must be text. U+0000 is allowed (data-plane 11).
///
/// # Errors
/// [`JsonTextError::LoneSurrogate`] with the byte of the escape.
pub fn check_payload(text: &str) -> Result<(), JsonTextError> {
    check(text, true)
}

/// Checks a state value: text as for payloads, no U+0000, and numbers that `jsonb` can show.
///
/// # Errors
/// The first fault with its byte.
pub fn check_state_value(text: &str) -> Result<(), JsonTextError> {
    check(text, false)?;
    // Outside strings, an exponent of four digits or more would break every jsonb reader.
    let bytes = text.as_bytes();
    let mut in_string = false;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'e' | b'E' if !in_string && at > 0 && bytes[at - 1].is_ascii_digit() => {
                let rest = bytes.get(at + 1..).unwrap_or_default();
                let digits = rest
                    .iter()
                    .skip_while(|b| matches!(b, b'+' | b'-' | b'0'))
                    .take_while(|b| b.is_ascii_digit())
                    .count();
                if digits > 3 {
                    return Err(JsonTextError::Exponent(at));
                }
            }
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The number at `windowEnd` of an object, for ripeness reads (streams G6-G8).
///
/// `None` for anything that is not an object with a JSON number there.
#[must_use]
pub fn window_end(value: &str) -> Option<f64> {
    #[derive(serde::Deserialize)]
    struct Window<'v> {
        #[serde(rename = "windowEnd", borrow)]
        window_end: Option<&'v serde_json::value::RawValue>,
    }
    if !value.contains("windowEnd") && !value.contains("\\u") {
        return None;
    }
    let window: Window<'_> = serde_json::from_str(value).ok()?;
    let text = window.window_end?.get();
    if text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surrogates_must_come_in_pairs() {
        assert_eq!(check_payload(r#""\ud83d\ude00 \u0000 \\ud800""#), Ok(()));
        assert_eq!(check_payload(r#""\ud800""#), Err(JsonTextError::LoneSurrogate(1)));
        assert_eq!(check_payload(r#""\ud800\u0041""#), Err(JsonTextError::LoneSurrogate(1)));
        assert_eq!(check_payload(r#""x\udc00""#), Err(JsonTextError::LoneSurrogate(2)));
    }

    #[test]
    fn state_values_refuse_what_the_store_cannot_show() {
        assert_eq!(check_state_value(r#"{"a":1.5e300,"b":"e9999 1e9999"}"#), Ok(()));
        assert_eq!(check_state_value(r#""a\u0000""#), Err(JsonTextError::Nul(2)));
        assert_eq!(check_state_value("[1e99999]"), Err(JsonTextError::Exponent(2)));
    }

    #[test]
    fn window_end_is_a_number_of_an_object() {
        assert_eq!(window_end(r#"{"windowEnd":1500.5}"#), Some(1500.5));
        assert_eq!(window_end(r#"{"windowEnd":1.5e3}"#), Some(1500.0));
        assert_eq!(window_end(r#"{"windowEnd":"1000"}"#), None);
        assert_eq!(window_end(r#"{"windowEnd":null}"#), None);
        assert_eq!(window_end(r#"{"x":{"windowEnd":1}}"#), None);
        assert_eq!(window_end("[1]"), None);
    }
}
