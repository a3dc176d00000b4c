// SPDX-License-Identifier: Apache-2.0
//! Parses the dates in store responses: the three formats of HTTP dates, and ISO 8601.

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Returns the number of days from the Unix epoch to a date of the Gregorian calendar (H. Hinnant, "chrono-compatible
/// low-level date algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn seconds(year: i64, month: i64, day: i64, clock: &str) -> Option<f64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(1..=9999).contains(&year) {
        return None;
    }
    let mut fields = clock.split(':');
    let hour: u32 = fields.next()?.parse().ok()?;
    let minute: u32 = fields.next()?.parse().ok()?;
    let second: f64 = fields.next()?.parse().ok()?;
    if fields.next().is_some() || hour > 23 || minute > 59 || !(0.0..61.0).contains(&second) {
        return None;
    }
    Some((days(year, month, day) * 86_400) as f64 + f64::from(hour * 3600 + minute * 60) + second)
}

fn month(name: &str) -> Option<i64> {
    MONTHS.iter().position(|known| known.eq_ignore_ascii_case(name)).map(|at| at as i64 + 1)
}

/// Parses an HTTP date (RFC 9110, section 5.6.7). Returns seconds since the Unix epoch. Formats: `Sun, 06 Nov 1994
/// 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` and `Sun Nov  6 08:49:37 1994`.
pub(crate) fn http(text: &str) -> Option<f64> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match words[..] {
        [_, day, name, year, clock, "GMT" | "UTC"] => {
            seconds(year.parse().ok()?, month(name)?, day.parse().ok()?, clock)
        }
        [_, date, clock, "GMT" | "UTC"] => {
            let mut fields = date.split('-');
            let (day, name, year) = (fields.next()?, fields.next()?, fields.next()?);
            let short: i64 = year.parse().ok()?;
            let year = if short >= 100 { short } else { short + if short < 70 { 2000 } else { 1900 } };
            seconds(year, month(name)?, day.parse().ok()?, clock)
        }
        [_, name, day, clock, year] => seconds(year.parse().ok()?, month(name)?, day.parse().ok()?, clock),
        _ => None,
    }
}

/// Parses `2026-01-31T12:00:00.123Z`, the format in S3 listings. Returns seconds since the Unix epoch.
pub(crate) fn iso8601(text: &str) -> Option<f64> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let mut fields = date.splitn(3, '-');
    let (year, month, day) = (fields.next()?, fields.next()?, fields.next()?);
    seconds(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?, clock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn test_http_date_in_each_of_its_forms_is_read() {
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(http(text), Some(784_111_777.0), "{text}");
        }
        assert_eq!(http("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800.0));
        for text in ["", "12", "Sun, 06 Nov 1994 25:49:37 GMT", "Sun, 06 Foo 1994 08:49:37 GMT"] {
            assert_eq!(http(text), None, "{text}");
        }
    }

    #[test]
    fn test_iso_date_keeps_its_fraction() {
        assert_eq!(iso8601("1970-01-02T00:00:01.500Z"), Some(86_401.5));
        assert_eq!(iso8601("2026-13-01T00:00:00Z"), None);
        assert_eq!(iso8601("yesterday"), None);
    }

    proptest! {
        #[test]
        fn prop_dates_of_any_text_do_not_panic(text in "\\PC{0,40}") {
            let _ = (http(&text), iso8601(&text));
        }
    }
}
