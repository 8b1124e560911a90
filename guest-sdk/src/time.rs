//! Instants as Unix milliseconds, their ISO-8601 forms, and short names for durations.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// The first instant that has a window key: 0000-01-01T00:00:00.000Z.
pub(crate) const FIRST_MS: i64 = -62_167_219_200_000;
/// The last instant that has a window key: 9999-12-31T23:59:59.999Z.
pub(crate) const LAST_MS: i64 = 253_402_300_799_999;

const DAY_MS: i64 = 86_400_000;

/// A duration of whole seconds.
#[must_use]
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A duration of whole minutes.
#[must_use]
pub const fn mins(n: u64) -> Duration {
    Duration::from_secs(n.saturating_mul(60))
}

/// A duration of whole hours.
#[must_use]
pub const fn hours(n: u64) -> Duration {
    Duration::from_secs(n.saturating_mul(3_600))
}

/// A duration of milliseconds.
#[must_use]
pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Whole milliseconds of a duration; longer ones than the calendar are cut.
pub(crate) fn duration_ms(d: Duration) -> i64 {
    i64::try_from(d.as_millis()).unwrap_or(LAST_MS).min(LAST_MS)
}

/// An instant in Unix milliseconds.
///
/// Reads from JSON as an ISO-8601 text or as a number of milliseconds. Writes as ISO-8601 in UTC,
/// with a fraction of three digits only where there is one.
///
/// ```
/// use foldmq_guest::Timestamp;
/// let t: Timestamp = serde_json::from_str(r#""2013-01-01T05:17:00-05:00""#).unwrap();
/// assert_eq!(t, Timestamp(1_357_035_420_000));
/// assert_eq!(serde_json::to_string(&t).unwrap(), r#""2013-01-01T10:17:00Z""#);
/// assert_eq!(t.iso(), "2013-01-01T10:17:00.000Z");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Reads `YYYY-MM-DDTHH:MM:SS`, an optional fraction (cut to milliseconds) and a zone: `Z`,
    /// `+HH:MM`, `+HHMM` or `+HH`. A blank may stand for the `T`. The zone must be there.
    ///
    /// # Errors
    /// [`TimeError`] for anything else, also for dates that no calendar has and leap seconds.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        parse(text.as_bytes()).map(Self).ok_or_else(|| TimeError(text.chars().take(64).collect()))
    }

    /// Milliseconds since 1970-01-01T00:00:00Z.
    #[must_use]
    pub const fn ms(self) -> i64 {
        self.0
    }

    /// `YYYY-MM-DDTHH:MM:SS.mmmZ`, always with three fraction digits, as window keys are spelled.
    #[must_use]
    pub fn iso(self) -> String {
        format_iso(self.0, true)
    }
}

/// `YYYY-MM-DDTHH:MM:SS`, then `.mmm` on request, then `Z`.
pub(crate) fn format_iso(ms: i64, with_millis: bool) -> String {
    let (year, month, day) = civil_from_days(ms.div_euclid(DAY_MS));
    let rest = ms.rem_euclid(DAY_MS);
    let (h, m, s) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60);
    if with_millis {
        let ms = rest % 1_000;
        format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z")
    } else {
        format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_iso(self.0, self.0.rem_euclid(1_000) != 0))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Instant;
        impl Visitor<'_> for Instant {
            type Value = Timestamp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an ISO-8601 instant or Unix milliseconds")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Timestamp, E> {
                Timestamp::parse(text).map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, ms: i64) -> Result<Timestamp, E> {
                Ok(Timestamp(ms))
            }

            fn visit_u64<E: serde::de::Error>(self, ms: u64) -> Result<Timestamp, E> {
                i64::try_from(ms).map(Timestamp).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Instant).map_err(D::Error::custom)
    }
}

/// A text that is no ISO-8601 instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeError(String);

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an ISO-8601 instant such as 2013-01-01T10:17:00Z", self.0)
    }
}

impl std::error::Error for TimeError {}

fn parse(text: &[u8]) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let (time, rest) = rest.split_at_checked(9)?;
    let [y @ .., b'-', m1, m2, b'-', d1, d2] = date else {
        return None;
    };
    let [b'T' | b' ', h1, h2, b':', n1, n2, b':', s1, s2] = time else {
        return None;
    };
    let (year, month, day) = (number(y)?, number(&[*m1, *m2])?, number(&[*d1, *d2])?);
    let (hour, minute) = (number(&[*h1, *h2])?, number(&[*n1, *n2])?);
    let second = number(&[*s1, *s2])?;
    if !(1..=12).contains(&month) || !(1..=days_in_month(year, month)).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let (millis, zone) = fraction(rest)?;
    let days = days_from_civil(year, month, day);
    let local = days * DAY_MS + hour * 3_600_000 + minute * 60_000 + second * 1_000 + millis;
    Some(local - offset_ms(zone)?)
}

/// Milliseconds of the fraction, if there is one, and what follows it.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let Some(digits) = text.strip_prefix(b".") else {
        return Some((0, text));
    };
    let count = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    let (digits, zone) = digits.split_at_checked(count)?;
    if digits.is_empty() {
        return None;
    }
    let millis =
        (0..3).fold(0, |ms, i| ms * 10 + digits.get(i).map_or(0, |digit| i64::from(digit - b'0')));
    Some((millis, zone))
}

fn offset_ms(zone: &[u8]) -> Option<i64> {
    let (sign, digits) = match zone {
        [b'Z'] => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match digits {
        [h1, h2] => (number(&[*h1, *h2])?, 0),
        [h1, h2, m1, m2] | [h1, h2, b':', m1, m2] => (number(&[*h1, *h2])?, number(&[*m1, *m2])?),
        _ => return None,
    };
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3_600_000 + minutes * 60_000))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0_i64, |n, digit| {
        digit.is_ascii_digit().then(|| n * 10 + i64::from(digit - b'0'))
    })
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 of a proleptic Gregorian date. Years begin in March here, so that the
/// leap day comes last; 146,097 days make 400 years.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let doe = days.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let shifted = (5 * doy + 2) / 153;
    let day = doy - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every first and last day of a month in the calendar's range survives a round trip.
    #[test]
    fn iso_forms_round_trip() {
        for year in 0..=9_999 {
            for month in 1..=12 {
                for day in [1, days_in_month(year, month)] {
                    let days = days_from_civil(year, month, day);
                    assert_eq!(civil_from_days(days), (year, month, day));
                }
            }
        }
        for ms in [FIRST_MS, -1, 0, 1, 1_785_837_600_000, LAST_MS] {
            assert_eq!(Timestamp::parse(&Timestamp(ms).iso()), Ok(Timestamp(ms)));
        }
        assert_eq!(Timestamp(FIRST_MS).iso(), "0000-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(LAST_MS).iso(), "9999-12-31T23:59:59.999Z");
        assert_eq!(Timestamp(-1).to_string(), "1969-12-31T23:59:59.999Z");
    }

    /// Zones and fractions are read; anything that could be guessed at is refused.
    #[test]
    fn iso_parser_is_strict() {
        let ms = |text: &str| Timestamp::parse(text).ok().map(Timestamp::ms);
        assert_eq!(ms("2013-01-01T10:17:00Z"), Some(1_357_035_420_000));
        assert_eq!(ms("2013-01-01 10:17:00.1239+00"), Some(1_357_035_420_123));
        assert_eq!(ms("2013-01-01T12:17:00.5+02:00"), Some(1_357_035_420_500));
        assert_eq!(ms("2013-01-01T04:47:00-0530"), Some(1_357_035_420_000));
        for bad in [
            "",
            "2013-01-01",
            "2013-01-01T10:17Z",
            "2013-01-01T10:17:00",
            "2013-1-01T10:17:00Z",
            "2013-02-29T10:17:00Z",
            "2013-13-01T10:17:00Z",
            "2013-01-01T24:00:00Z",
            "2013-01-01T10:17:60Z",
            "2013-01-01T10:17:00.Z",
            "2013-01-01T10:17:00z",
            "2013-01-01T10:17:00+25:00",
            "2013-01-01T10:17:00Z ",
            "+013-01-01T10:17:00Z",
            "２013-01-01T10:17:00Z",
            "2013-01-01T10:17:00+1:00",
        ] {
            assert_eq!(ms(bad), None, "{bad}");
        }
    }
}
