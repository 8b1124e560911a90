//! Checks JSON text that a guest returned, more strictly than a parser that only skips over it.

#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// How a JSON document is kept, which decides what may stand in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// As it is spelled.
    AsText,
    /// As `jsonb`, which has no U+0000 and holds numbers as `numeric`.
    AsJsonb,
}

/// Longest number, and largest exponent, in a value that is kept as `jsonb`. `numeric` has 16,383
/// digits behind the point.
const NUMBER_REACH: usize = 8_000;

/// Checks that a text is one JSON document; the error says what is wrong and where.
///
/// Syntax is `serde_json`'s affair. What it lets pass when it only skips over a document is looked
/// at here: halves of surrogate pairs, depth, and what `jsonb` can't hold.
pub(super) fn check(text: &str, depth_max: usize, kept: Kept) -> Result<(), String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map_err(|error| format!("is no JSON document: {error}"))?;
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = check_string(bytes, at, kept)?,
            b'[' | b'{' => {
                depth = depth.saturating_add(1);
                if depth > depth_max {
                    return Err(format!("is nested deeper than {depth_max} levels"));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'-' | b'0'..=b'9' if kept == Kept::AsJsonb => {
                at = check_number(text, at)?;
                continue;
            }
            _ => {}
        }
        at = at.saturating_add(1);
    }
    Ok(())
}

/// Looks at the escapes of the string whose opening quote stands at `at`; gives the place of its
/// closing quote.
fn check_string(bytes: &[u8], mut at: usize, kept: Kept) -> Result<usize, String> {
    loop {
        at = at.saturating_add(1);
        match bytes.get(at) {
            Some(b'\\') => {}
            Some(b'"') | None => return Ok(at),
            Some(_) => continue,
        }
        let escape = at;
        at = at.saturating_add(1);
        let Some(unit) = unicode_escape(bytes, escape) else {
            continue;
        };
        at = escape.saturating_add(5);
        match unit {
            0 if kept == Kept::AsJsonb => {
                return Err(format!("holds the character U+0000 at byte {escape}"));
            }
            0xd800..=0xdbff => {
                let low = escape.saturating_add(6);
                if !matches!(unicode_escape(bytes, low), Some(0xdc00..=0xdfff)) {
                    return Err(format!("holds half a surrogate pair at byte {escape}"));
                }
                at = low.saturating_add(5);
            }
            0xdc00..=0xdfff => return Err(format!("holds half a surrogate pair at byte {escape}")),
            _ => {}
        }
    }
}

/// The code unit of the escape `\uXXXX` that stands at `at`, if one does.
fn unicode_escape(bytes: &[u8], at: usize) -> Option<u16> {
    let escape = bytes.get(at..at.saturating_add(6))?;
    let digits = escape.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Checks the reach of the number that begins at `at`; gives the place behind it.
fn check_number(text: &str, at: usize) -> Result<usize, String> {
    let rest = text.get(at..).unwrap_or_default();
    let of_number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    let number = rest.split(|c| !of_number(c)).next().unwrap_or_default();
    let exponent = number.split(['e', 'E']).nth(1).unwrap_or("0");
    let reach = exponent.trim_start_matches(['-', '+']).parse::<usize>().unwrap_or(usize::MAX);
    if number.len() > NUMBER_REACH || reach > NUMBER_REACH {
        return Err(format!("holds a number beyond {NUMBER_REACH} digits at byte {at}"));
    }
    Ok(at.saturating_add(number.len()))
}
