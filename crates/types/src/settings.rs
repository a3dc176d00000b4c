// SPDX-License-Identifier: Apache-2.0
//! Parses the settings that Python passes to the core as one JSON document.

use std::time::Duration;

use serde::Deserialize;

use crate::{Error, Result};

/// Parses a JSON document of settings.
///
/// # Errors
///
/// Returns an error if a field is missing, unknown or has a wrong type. The error contains the name of the field, or
/// `what` if no field is known.
pub fn parse_settings<'de, T: Deserialize<'de>>(what: &str, json: &'de str) -> Result<T> {
    let mut document = serde_json::Deserializer::from_str(json);
    serde_path_to_error::deserialize(&mut document).map_err(|error| {
        let path = error.path().to_string();
        // The document is internal, so the error does not contain positions in it.
        let text = error.inner().to_string();
        let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem);
        Error::config(if matches!(&*path, "." | "?") { what } else { &path }, problem)
    })
}

/// Converts a setting in seconds to a duration.
///
/// # Errors
///
/// Returns an error for the setting `what` if the value is negative, not finite, or too large.
pub fn duration(what: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Error::config(what, format!("must be a valid duration in seconds (got {seconds})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        #[expect(dead_code, reason = "read by serde")]
        threads: usize,
    }

    #[test]
    fn settings_of_another_type_are_refused_by_name() {
        let refused = |json| parse_settings::<Settings>("loader", json).unwrap_err().to_string();
        assert!(parse_settings::<Settings>("loader", r#"{"threads": 2}"#).is_ok());
        assert_eq!(refused(r#"{"threads": "8"}"#), r#"threads: invalid type: string "8", expected usize"#);
        assert!(refused("{}").contains("missing field `threads`"));
        assert!(refused(r#"{"threads": 2, "thread": 2}"#).starts_with("thread: unknown field"));
        assert!(refused("{").starts_with("loader: "));
    }

    #[test]
    fn duration_of_an_impossible_number_is_refused() {
        assert_eq!(duration("--timeout", 0.5).unwrap(), Duration::from_millis(500));
        for seconds in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(duration("--timeout", seconds).is_err(), "{seconds}");
        }
    }
}
